#include "fuzz/hostile_file.h"
#include "serve/api_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltatrain::serve;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const ApiLimits limits{.max_prompts = 16, .max_prompt_tokens = 64};
  deltatrain::fuzz::refuse_or_accept([&] {
    const ApiRequest request = parse_completion_request(body, limits);
    // What is accepted keeps to the limits.
    if (request.prompts.empty() || request.prompts.size() > 16 || request.num_samples < 1)
      std::abort();
  });
  return deltatrain::fuzz::refuse_or_accept([&] {
    if (parse_chat_request(body, limits).messages.empty()) std::abort();
  });
}
