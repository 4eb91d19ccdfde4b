#include "serve/small_server.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "model/initialization.h"
#include "support/test_files.h"

namespace deltatrain::test {

text::Tokenizer golden_tokenizer(const std::string& name) {
  const TemporaryFolder folder;
  const auto golden = nlohmann::json::parse(read_file(golden_path("text/" + name + ".json")));
  write_file_atomically(folder / "tokenizer.json", golden.at("tokenizer").dump());
  if (name == "llama3")
    write_file_atomically(folder / "tokenizer_config.json",
                          R"({"bos_token": "<|bos|>", "eos_token": "<|eos|>"})");
  return text::Tokenizer::load(folder.path());
}

SmallServer::Options::Options() {
  engine.max_length = 600;
  engine.prefix_cache_bytes = 1 << 22;
  http.port = 0;
}

SmallServer::SmallServer() : SmallServer(Options()) {}

SmallServer::SmallServer(const Options& options)
    : tokenizer_(golden_tokenizer("llama3")), backend_(backend::make_backend(DeviceKind::kCpu)) {
  backend::BackendOptions plan_options;
  plan_options.planned = DeviceKind::kCpu;
  plan_ = backend::make_backend(DeviceKind::kPlan, plan_options);
  ModelConfig config;
  config.vocab_size = tokenizer_.vocab_size() + 4;  // some ids have no token, as is common
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.num_v_heads = 4;
  config.head_dim = 16;
  context_ = {&backend_->device(), &backend_->table(), nullptr, DType::kF32};
  planning_context_ = {&plan_->device(), &plan_->table(), nullptr, DType::kF32};
  engine_ = std::make_unique<serve::Engine>(context_, planning_context_, config, options.engine);
  initialize(engine_->context(), engine_->parameters(), 0.1, 5);
  if (options.has_broken_weights) {
    const Tensor weights = engine_->parameters().flat_master();
    std::fill_n(weights.data<float>(), weights.num_elements(),
                std::numeric_limits<float>::quiet_NaN());
    engine_->parameters().refresh_compute(engine_->context());
  }
  serve::ServiceOptions service{.model_name = "small", .api_key = options.api_key};
  if (!options.chat_template.empty())
    service.chat_template = std::make_shared<const serve::ChatTemplate>(
        options.chat_template, "small", "<|bos|>", "<|eos|>");
  service_ = std::make_unique<serve::Service>(*engine_, tokenizer_, service);
  http_ = std::make_unique<serve::HttpServer>(
      options.http,
      [this](const serve::HttpRequest& request, const std::shared_ptr<serve::Exchange>& exchange) {
        service_->handle(request, exchange);
      },
      [](int status, const std::string& message) {
        return serve::Service::error_body(status, message);
      });
  service_->set_http_stats(http_->stats());
  http_->start();
  thread_ = std::thread([this] {
    while (!is_over_) {
      if (!engine_->step()) engine_->wait(std::chrono::milliseconds(20));
    }
  });
}

SmallServer::~SmallServer() {
  http_->stop();
  is_over_ = true;
  thread_.join();
}

bool SmallServer::is_idle_soon() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const serve::EngineStats& stats = engine_->stats();
  while (std::chrono::steady_clock::now() < end) {
    if (http_->num_exchanges() == 0 && stats.waiting == 0 && stats.prompts == 0 &&
        stats.streams == 0)
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace deltatrain::test
