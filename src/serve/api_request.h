// Bodies of requests to /v1/completions and /v1/chat/completions, as the OpenAI API defines them.
//
// Bytes from strangers: every field is checked for type and range, and one that is unknown or would
// have to be ignored is refused. top_k, ignore_eos and add_special_tokens are extensions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "decode/sampler.h"

namespace deltatrain::serve {

// What an answer with this HTTP status says. Nothing else of the server's ends a request.
class ApiError : public Error {
 public:
  // `parameter` names the field at fault, "" where none is.
  ApiError(int status, const std::string& message, std::string parameter = "")
      : Error(message, ExitCode::kBadInput), status_(status), parameter_(std::move(parameter)) {}
  int status() const { return status_; }
  const std::string& parameter() const { return parameter_; }

 private:
  int status_;
  std::string parameter_;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct ChatMessage {
  std::string role;
  std::string content;
};

struct ApiRequest {
  std::vector<Prompt> prompts;        // of /v1/completions: one or more
  std::vector<ChatMessage> messages;  // of /v1/chat/completions: one or more
  std::optional<int64_t> max_tokens;
  int64_t num_samples = 1;
  decode::Sampling sampling;
  bool has_seed = false;
  std::vector<std::string> stop;
  int64_t num_top = -1;  // log-probabilities with so many alternatives; -1: none
  bool echo = false;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;
  bool add_special_tokens = false;
};

struct ApiLimits {
  int64_t max_prompts = 4096;        // of one request
  int64_t max_prompt_tokens = 4096;  // of one prompt of ids
};

// ApiError with status 400 for anything but a well-formed request.
ApiRequest parse_completion_request(std::string_view body, const ApiLimits& limits);
ApiRequest parse_chat_request(std::string_view body, const ApiLimits& limits);

}  // namespace deltatrain::serve
