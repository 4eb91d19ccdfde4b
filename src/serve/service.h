// What the server answers: the routes of the OpenAI API that make sense for one language model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "serve/api_request.h"
#include "serve/chat_template.h"
#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/metrics.h"
#include "text/tokenizer.h"

namespace deltatrain::serve {

struct ServiceOptions {
  std::string model_name;
  std::string api_key;                                // "": everybody may ask
  std::shared_ptr<const ChatTemplate> chat_template;  // null: no chats; shared by requests
  std::string no_chat_reason = "this model's tokenizer has no chat template; use /v1/completions";
};

class Service {
 public:
  // The engine has to outlive the service, and is stepped by somebody else.
  Service(Engine& engine, const text::Tokenizer& tokenizer, const ServiceOptions& options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Answers, or passes the request on to the engine, which answers later. From any thread.
  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  // {"error": {...}} for the server's own answers.
  static std::string error_body(int status, const std::string& message,
                                const std::string& parameter = "");
  // For /metrics; before the first request.
  void set_http_stats(const HttpStats& stats) { http_stats_ = &stats; }

 private:
  void route(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void complete(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                bool is_chat);
  bool may_ask(const HttpRequest& request) const;
  std::string models() const;

  Engine& engine_;
  text::Tokenizer tokenizer_;
  ServiceOptions options_;
  std::shared_ptr<Metrics> metrics_;  // shared with answers under way
  const HttpStats* http_stats_ = nullptr;
  int64_t start_unix_seconds_;
};

}  // namespace deltatrain::serve
