// One request to /v1/completions or /v1/chat/completions on its way through the engine: collects what
// its prompts are answered, as one JSON object at the end or as a stream of server-sent events.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_request.h"
#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/metrics.h"
#include "serve/text_stream.h"

namespace deltatrain::serve {

struct CompletionSettings {
  bool is_chat = false;
  bool echo = false;
  bool streams = false;
  bool includes_usage = false;
  int64_t num_top = -1;  // -1: no log-probabilities
  int64_t num_samples = 1;
  std::vector<std::string> stop;
  std::string model_name;
  std::string path;  // for the metrics
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(const text::Tokenizer& tokenizer, CompletionSettings settings,
             std::vector<std::vector<int32_t>> prompts, std::shared_ptr<Exchange> exchange,
             std::shared_ptr<Metrics> metrics);
  ~Completion();

  // Who hears of prompt `index`; keeps this object alive.
  std::shared_ptr<Listener> listener(size_t index);
  // Drops what has been handed to the engine already: the request is refused.
  void abandon() { is_over_ = is_answered_ = true; }

 private:
  class Part;
  struct Choice;

  std::string token_string(int32_t id) const;
  void choice_is_over();
  void fail(const std::string& message);
  void event(const std::string& json);
  std::string beginning(const char* object) const;
  std::string usage() const;
  std::string whole_answer() const;
  std::string chunk(const Part& part, size_t sample, const std::string& text, size_t first_entry,
                    bool is_first) const;
  std::string usage_chunk() const;
  void first_token_came();

  text::Tokenizer tokenizer_;
  CompletionSettings settings_;
  std::shared_ptr<Exchange> exchange_;  // shared with the connection
  std::shared_ptr<Metrics> metrics_;    // shared with the service
  std::vector<std::unique_ptr<Part>> parts_;
  std::string id_;
  int64_t created_unix_seconds_;
  std::chrono::steady_clock::time_point start_;
  size_t num_open_choices_ = 0;
  bool has_first_token_ = false;
  bool has_stream_ = false;
  std::atomic<bool> is_over_{false};  // answered, failed or abandoned
  std::atomic<bool> is_answered_{false};
};

}  // namespace deltatrain::serve
