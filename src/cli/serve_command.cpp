#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/model_folder.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "model/weights.h"
#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/service.h"
#include "text/tokenizer.h"

namespace deltatrain::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct ServeOptions {
  std::string model, tokenizer, name, api_key_file;
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  int64_t max_length = 0;
  int64_t streams = 0;
  int64_t prompts = 16;
  int64_t piece_tokens = 0;
  int64_t queue = 4096;
  int64_t prefix_cache_mib = 256;
  int64_t max_body_mib = 8;
  int64_t connections = 512;
  int64_t timeout_seconds = 600;
  int64_t grace_seconds = 30;
  DeviceOptions device;
};

// The first line of a file, so that the key stands in no list of processes.
std::string read_key(const std::string& path) {
  std::string key = read_file(path, 1 << 16);
  key.resize(std::min(key.size(), key.find_first_of("\r\n")));
  if (key.empty()) throw ConfigError(error_text(path, "first line", "an API key", "nothing"));
  return key;
}

std::string name_of(const ServeOptions& options) {
  if (!options.name.empty()) return options.name;
  const std::filesystem::path path = std::filesystem::path(options.model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// A template that cannot be read leaves completions as they are.
void load_chat_template(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                        serve::ServiceOptions& options, Reporter& reporter) {
  const auto text = [&](std::optional<int32_t> id) {
    return id ? tokenizer.token_text(*id) : std::string();
  };
  try {
    auto loaded =
        serve::ChatTemplate::load(std::filesystem::is_directory(path) ? path : path.parent_path(),
                                  text(tokenizer.bos_id()), text(tokenizer.eos_id()));
    if (loaded)
      options.chat_template = std::make_shared<const serve::ChatTemplate>(std::move(*loaded));
  } catch (const FormatError& error) {
    options.no_chat_reason =
        std::string("the model's chat template is not understood: ") + error.what();
    reporter.warning("serve", std::string("no chats: ") + error.what());
  }
}

// Steps the engine until a signal has come and all answers under way are given, or their time is over.
int work(serve::Engine& engine, serve::HttpServer& server, const StopSignals& signals,
         const ServeOptions& options, Reporter& reporter) {
  int signal = 0;
  Clock::time_point end;
  while (true) {
    if (const int came = signal == 0 ? signals.take() : 0; came != 0) {
      signal = came;
      end = Clock::now() + std::chrono::seconds(options.grace_seconds);
      server.stop_accepting();
      reporter.message("serve", "stopping: " + std::to_string(server.num_exchanges()) +
                                    " answers are under way");
    }
    const bool is_busy = engine.step();
    if (signal != 0 && (server.num_exchanges() == 0 || Clock::now() > end)) return signal;
    if (!is_busy) engine.wait(std::chrono::milliseconds(signal == 0 ? 100 : 10));
  }
}

void run_serve(const ServeOptions& options, Environment& environment) {
  const StopSignals signals;
  const std::string key = options.api_key_file.empty() ? "" : read_key(options.api_key_file);
  const checkpoint::ModelFolder folder(options.model);
  const ModelConfig config = read_model_config(folder);
  const std::filesystem::path tokenizer_path =
      options.tokenizer.empty() ? folder.folder() : std::filesystem::path(options.tokenizer);
  if (options.tokenizer.empty() && !text::has_tokenizer(tokenizer_path))
    throw ConfigError(error_text(tokenizer_path.string(), "tokenizer",
                                 "a tokenizer.json or tokenizer.model, or --tokenizer", "none"));
  const auto tokenizer = text::Tokenizer::load(tokenizer_path);

  // The server goes first: its threads use the others.
  std::optional<serve::Engine> engine;
  std::optional<serve::Service> service;
  serve::HttpOptions http_options;
  http_options.host = options.host;
  http_options.port = static_cast<uint16_t>(options.port);
  http_options.max_body_bytes = options.max_body_mib << 20;
  http_options.max_connections = options.connections;
  http_options.request_time = std::chrono::seconds(options.timeout_seconds);
  serve::HttpServer server(
      http_options,
      [&service](const serve::HttpRequest& request,
                 const std::shared_ptr<serve::Exchange>& exchange) {
        service->handle(request, exchange);
      },
      [](int status, const std::string& message) {
        return serve::Service::error_body(status, message);
      });

  DeviceOptions device_options = options.device;
  device_options.gemm_uniform_rows = true;
  DeviceChoice device(device_options);
  const bool is_cuda = device.context().device->kind() == DeviceKind::kCuda;
  serve::EngineOptions engine_options{
      .num_streams = options.streams > 0 ? options.streams : (is_cuda ? 256 : 32),
      .num_prompts = options.prompts,
      // As many as a harness sends that scores texts of the model's whole length.
      .max_length =
          options.max_length > 0 ? options.max_length : config.max_position_embeddings + 2,
      .max_queue = options.queue,
      .prefix_cache_bytes = options.prefix_cache_mib << 20,
      // A GPU takes as long for 256 rows as for 1024.
      .piece_tokens = options.piece_tokens > 0 ? options.piece_tokens : (is_cuda ? 1024 : 256)};
  engine.emplace(device.context(), device.planning_context(), config, engine_options);
  load_weights(engine->context(), config, folder, engine->parameters());
  serve::ServiceOptions service_options{.model_name = name_of(options), .api_key = key};
  load_chat_template(tokenizer_path, tokenizer, service_options, environment.reporter);
  service.emplace(*engine, tokenizer, service_options);
  service->set_http_stats(server.stats());
  server.start();

  char line[160];
  std::snprintf(line, sizeof line, "%lld streams of at most %lld tokens, %.2f MiB each",
                static_cast<long long>(engine_options.num_streams),
                static_cast<long long>(engine_options.max_length),
                static_cast<double>(engine->bytes_per_stream()) / (1 << 20));
  environment.reporter.message("serve", line);
  const bool is_v6 = options.host.find(':') != std::string::npos;
  std::printf("http://%s:%u\n", (is_v6 ? "[" + options.host + "]" : options.host).c_str(),
              static_cast<unsigned>(server.port()));
  std::fflush(stdout);
  try {
    environment.exit_code = 128 + work(*engine, server, signals, options, environment.reporter);
  } catch (const std::exception& error) {
    // Whoever waits is told before the program ends.
    server.stop_accepting();
    engine->fail_all(error.what());
    for (int i = 0; i < 100 && server.num_exchanges() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    throw;
  }
}

}  // namespace

void add_serve_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand(
      "serve", "HTTP server with the OpenAI API for completions, and a page to try the model");
  command->add_option("--model", options->model, "Checkpoint, run folder or Hugging Face folder")
      ->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "Folder or file; default: the model's folder");
  command
      ->add_option("--host", options->host,
                   "Address to listen on; 0.0.0.0: all, also of other machines")
      ->capture_default_str();
  command->add_option("--port", options->port, "0: any that is free")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  command->add_option("--name", options->name,
                      "Name of the model in answers; default: its folder's name");
  command->add_option("--api-key-file", options->api_key_file,
                      "File whose first line clients have to send as Bearer; default: no key");
  command
      ->add_option("--max-length", options->max_length,
                   "Tokens of a prompt and its answer; default: config.json's "
                   "max_position_embeddings + 2")
      ->check(whole_number(2, 1 << 24));
  command
      ->add_option("--streams", options->streams,
                   "Answers that are decoded at a time; default: 32, cuda: 256")
      ->check(whole_number(1, 65536));
  command->add_option("--prompts", options->prompts, "Prompts that are read at a time")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command
      ->add_option(
          "--piece-tokens", options->piece_tokens,
          "Tokens of prompts that go through the model at a time; default: 256, cuda: 1024")
      ->check(CLI::IsMember({64, 128, 256, 512, 1024, 2048, 4096}));
  command
      ->add_option("--queue", options->queue, "Prompts that wait; more are refused with status 503")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--prefix-cache-mib", options->prefix_cache_mib,
                   "Memory for states of prompts that others may begin with; 0: none")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-body-mib", options->max_body_mib, "Size of a request")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  command->add_option("--connections", options->connections, "Open at a time; more are closed")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  command
      ->add_option("--timeout", options->timeout_seconds,
                   "Seconds from a request to its whole answer")
      ->check(whole_number(1, 86400))
      ->capture_default_str();
  command
      ->add_option("--grace", options->grace_seconds, "Seconds for answers under way after SIGTERM")
      ->check(whole_number(0, 86400))
      ->capture_default_str();
  options->device.add_to(*command);
  command->footer(
      "Prints its address when it is ready. SIGTERM and SIGINT end it with exit code 128 + signal "
      "once the answers under way are given; a port that is taken is exit code 5.\n"
      "Example: deltatrain serve --model runs/a-hf --port 8000\n"
      "         curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"The\", "
      "\"max_tokens\": 20}'");
  command->callback([options, &environment] { run_serve(*options, environment); });
}

}  // namespace deltatrain::cli
