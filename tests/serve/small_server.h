// A server over a small untrained model, in this process.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "backend/registry.h"
#include "serve/engine.h"
#include "serve/http_server.h"
#include "serve/service.h"
#include "text/tokenizer.h"

namespace deltatrain::test {

// A tokenizer.json of tests/golden/text: "llama3", "byte_fallback", ...
text::Tokenizer golden_tokenizer(const std::string& name);

class SmallServer {
 public:
  struct Options {
    Options();

    serve::EngineOptions engine;  // 600 tokens at most, some prefixes kept
    serve::HttpOptions http;      // on any free port
    std::string api_key, chat_template;
    bool has_broken_weights = false;
  };
  SmallServer();
  explicit SmallServer(const Options& options);
  ~SmallServer();

  uint16_t port() const { return http_->port(); }
  serve::Engine& engine() { return *engine_; }
  serve::HttpServer& http_server() { return *http_; }
  // Without arena.
  const Context& context() const { return context_; }
  const Context& planning_context() const { return planning_context_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  // Waits, for a minute at most, until nothing is under way.
  bool is_idle_soon();

 private:
  text::Tokenizer tokenizer_;
  std::unique_ptr<backend::Backend> backend_, plan_;
  Context context_, planning_context_;
  std::unique_ptr<serve::Engine> engine_;
  std::unique_ptr<serve::Service> service_;
  std::unique_ptr<serve::HttpServer> http_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace deltatrain::test
