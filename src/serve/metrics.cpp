#include "serve/metrics.h"

#include <cstdio>

namespace deltatrain::serve {

namespace {

std::string header(const std::string& name, const char* type, const std::string& help) {
  return "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

std::string single(const std::string& name, const char* type, const std::string& help,
                   int64_t value) {
  return header(name, type, help) + name + " " + std::to_string(value) + "\n";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

void Histogram::add(double value) {
  size_t at = 0;
  while (at < kBounds.size() && value > kBounds[at]) ++at;
  const std::lock_guard lock(mutex_);
  ++counts_[at];
  sum_ += value;
}

std::string Histogram::text(const std::string& name, const std::string& help) const {
  const std::lock_guard lock(mutex_);
  std::string result = header(name, "histogram", help);
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < kBounds.size() ? number(kBounds[i]) : "+Inf";
    result += name + "_bucket{le=\"" + bound + "\"} " + std::to_string(total) + "\n";
  }
  return result + name + "_sum " + number(sum_) + "\n" + name + "_count " + std::to_string(total) +
         "\n";
}

void Metrics::count(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
}

std::string Metrics::text(const EngineStats& engine, const HttpStats& http) const {
  std::string result = header("deltatrain_http_requests_total", "counter", "Requests answered.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : requests_)
      result += "deltatrain_http_requests_total{path=\"" + key.first + "\",code=\"" +
                std::to_string(key.second) + "\"} " + std::to_string(count) + "\n";
  }
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    result += single(std::string("deltatrain_") + name, "counter", help, value);
  };
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    result += single(std::string("deltatrain_") + name, "gauge", help, value);
  };
  result += request_seconds.text("deltatrain_request_seconds",
                                 "Seconds from a completion's request to its whole answer.");
  result += first_token_seconds.text("deltatrain_first_token_seconds",
                                     "Seconds from a completion's request to its first token.");
  counter("prompts_total", "Prompts taken into the queue.", engine.requests);
  counter("prompt_tokens_total", "Prompt tokens that went through the model.",
          engine.prompt_tokens);
  counter("reused_prompt_tokens_total", "Prompt tokens whose state was kept from another prompt.",
          engine.reused_prompt_tokens);
  counter("generated_tokens_total", "Tokens generated.", engine.generated_tokens);
  counter("prompt_passes_total", "Passes over prompts.", engine.passes);
  counter("decoding_steps_total", "Steps of decoding.", engine.steps);
  counter("refused_connections_total", "Connections closed because there were too many.",
          http.refused_connections);
  counter("timed_out_requests_total", "Requests whose time was over.", http.timed_out);
  counter("gone_clients_total", "Clients that left before their answer.", http.gone);
  gauge("connections", "Open connections.", http.connections);
  gauge("waiting_prompts", "Prompts that wait.", engine.waiting);
  gauge("running_prompts", "Prompts on their way through the model.", engine.prompts);
  gauge("streams", "Samples that are being decoded.", engine.streams);
  gauge("kept_prefixes", "States kept for prompts that begin alike.", engine.kept_prefixes);
  return result;
}

}  // namespace deltatrain::serve
