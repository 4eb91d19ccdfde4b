#include "serve/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace deltatrain::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr ApiLimits kLimits{.max_prompts = 3, .max_prompt_tokens = 5};

ApiRequest completion(const std::string& body) { return parse_completion_request(body, kLimits); }
ApiRequest chat(const std::string& body) { return parse_chat_request(body, kLimits); }

template <class Parse>
std::pair<std::string, std::string> refusal(Parse parse, const std::string& body) {
  try {
    parse(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << body;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return {error.what(), error.parameter()};
  }
  return {};
}

using Ids = std::vector<int32_t>;

TEST(ApiRequestTest, PromptsAreStringsOrIdsOneOrMore) {
  EXPECT_EQ(completion(R"({"prompt": "a"})").prompts, (std::vector<Prompt>{"a"}));
  EXPECT_EQ(completion(R"({"prompt": ["a", ""]})").prompts, (std::vector<Prompt>{"a", ""}));
  EXPECT_EQ(completion(R"({"prompt": [1, 2]})").prompts, (std::vector<Prompt>{Ids{1, 2}}));
  EXPECT_EQ(completion(R"({"prompt": [[1], [2, 3]]})").prompts,
            (std::vector<Prompt>{Ids{1}, Ids{2, 3}}));
}

// The body of evaluation clients.
TEST(ApiRequestTest, ScoringRequest) {
  const ApiRequest request = completion(
      R"({"model": "NAME", "prompt": [[128, 14, 25, 0], [128, 25]], "temperature": 0,
          "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true})");
  EXPECT_EQ(request.prompts.size(), 2U);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.max_tokens, 1);
  EXPECT_EQ(request.num_top, 1);
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.sampling.seed, 1234U);
}

TEST(ApiRequestTest, DefaultsAreTheApis) {
  const ApiRequest request = completion(R"({"prompt": "a"})");
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.num_samples, 1);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.num_top, -1);
  EXPECT_FALSE(request.echo || request.stream || request.has_seed);
  // Null is nothing, whatever the field.
  EXPECT_EQ(completion(R"({"prompt": "a", "max_tokens": null, "logprobs": null, "stop": null,
                           "n": null, "logit_bias": null, "stream": null})")
                .num_samples,
            1);
}

TEST(ApiRequestTest, EveryField) {
  const ApiRequest request = completion(
      R"({"prompt": "a", "max_tokens": 0, "echo": true, "n": 2, "best_of": 2, "temperature": 0.5,
          "top_p": 0.25, "top_k": 7, "seed": -1, "stop": ["x", "yz"], "logprobs": 5, "stream": true,
          "stream_options": {"include_usage": true}, "ignore_eos": true, "add_special_tokens": true,
          "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "suffix": "",
          "user": "u"})");
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(request.num_samples, 2);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.seed, UINT64_MAX);
  EXPECT_THAT(request.stop, ElementsAre("x", "yz"));
  EXPECT_EQ(request.num_top, 5);
  EXPECT_TRUE(request.stream && request.include_usage && request.ignore_eos &&
              request.add_special_tokens);
  EXPECT_THAT(completion(R"({"prompt": "a", "stop": "end"})").stop, ElementsAre("end"));
}

TEST(ApiRequestTest, RefusesWithTheFieldWhatWasExpectedAndWhatCame) {
  const std::vector<std::tuple<const char*, const char*, const char*>> cases = {
      {"", "", "body: expected JSON, got a parse error"},
      {"{", "", "body: expected JSON, got a parse error"},
      {"{\"prompt\": \"\xff\"}", "", "body: expected JSON, got a parse error"},
      {"[]", "body", "body: expected a JSON object, got an array"},
      {"{}", "prompt", "prompt: expected a prompt, got none"},
      {R"({"prompt": null})", "prompt", "prompt: expected a prompt, got none"},
      {R"({"prompt": 5})", "prompt", "prompt: expected a string, a list"},
      {R"({"prompt": []})", "prompt", "prompt: expected at least one prompt, got none"},
      {R"({"prompt": [[]]})", "prompt", "prompt: expected at least one token, got none"},
      {R"({"prompt": ["a", 1]})", "prompt", "prompt: expected a string"},
      {R"({"prompt": [1, "a"]})", "prompt", "prompt: expected a whole number"},
      {R"({"prompt": [1.5]})", "prompt", "prompt: expected a whole number from 0"},
      {R"({"prompt": [-1]})", "prompt", "prompt: expected a whole number from 0"},
      {R"({"prompt": [4294967296]})", "prompt", "prompt: expected a whole number from 0"},
      {R"({"prompt": [18446744073709551615]})", "prompt", "prompt: expected a whole number"},
      {R"({"prompt": [1e30]})", "prompt", "prompt: expected a whole number"},
      {R"({"prompt": [{}]})", "prompt", "prompt: expected a string"},
      {R"({"prompt": [1, 2, 3, 4, 5, 6]})", "prompt", "prompt: expected at most 5 tokens, got 6"},
      {R"({"prompt": ["", "", "", ""]})", "prompt", "prompt: expected at most 3 prompts, got 4"},
      {R"({"prompt": "a", "temprature": 1})", "temprature",
       "temprature: unknown field; did you mean temperature?"},
      {R"({"prompt": "a", "qqqq": 1})", "qqqq", "qqqq: unknown field"},
      {R"({"prompt": "a", "max_tokens": "5"})", "max_tokens",
       "max_tokens: expected a whole number from 0 to 1073741824, got \"5\""},
      {R"({"prompt": "a", "max_tokens": 1.0})", "max_tokens", "max_tokens: expected a whole"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "max_tokens: expected a number >= 1"},
      {R"({"prompt": "a", "temperature": -0.1})", "temperature",
       "temperature: expected a number from 0 to 100, got -0.1"},
      {R"({"prompt": "a", "temperature": true})", "temperature", "temperature: expected a number"},
      {R"({"prompt": "a", "top_p": 1.1})", "top_p", "top_p: expected a number from 0 to 1"},
      {R"({"prompt": "a", "top_k": 1.5})", "top_k", "top_k: expected a whole number"},
      {R"({"prompt": "a", "n": 0})", "n", "n: expected a whole number from 1"},
      {R"({"prompt": "a", "best_of": 2})", "best_of", "best_of: expected the same as n"},
      {R"({"prompt": "a", "seed": 0.5})", "seed", "seed: expected a whole number, got 0.5"},
      {R"({"prompt": "a", "stop": 1})", "stop", "stop: expected a string or a list of strings"},
      {R"({"prompt": "a", "stop": [""]})", "stop", "stop: expected strings of 1 to 1024 bytes"},
      {R"({"prompt": "a", "stop": [1]})", "stop", "stop: expected a string, got 1"},
      {R"({"prompt": "a", "logprobs": 21})", "logprobs", "logprobs: expected a whole number"},
      {R"({"prompt": "a", "logprobs": true})", "logprobs", "logprobs: expected a whole number"},
      {R"({"prompt": "a", "echo": 1})", "echo", "echo: expected true or false, got 1"},
      {R"({"prompt": "a", "stream": "yes"})", "stream", "stream: expected true or false"},
      {R"({"prompt": "a", "stream_options": {"x": 1}})", "stream_options",
       "stream_options: expected include_usage, got x"},
      {R"({"prompt": "a", "logit_bias": {"5": 1}})", "logit_bias", "logit_bias: expected nothing"},
      {R"({"prompt": "a", "presence_penalty": 0.5})", "presence_penalty",
       "presence_penalty: expected nothing, or 0.0, as it is not supported, got 0.5"},
      {R"({"prompt": "a", "suffix": "b"})", "suffix", "suffix: expected nothing"},
      {R"({"prompt": "a", "model": 5})", "model", "model: expected a string, got 5"},
      {R"({"messages": []})", "messages", "messages: unknown field"},
  };
  for (const auto& [body, parameter, message] : cases) {
    const auto [got, got_parameter] = refusal(completion, body);
    EXPECT_THAT(got, StartsWith(message)) << body;
    EXPECT_EQ(got_parameter, parameter) << body;
  }
}

TEST(ApiRequestTest, DeepNestingIsRefusedBeforeItCostsMemory) {
  const std::string deep(200000, '[');
  EXPECT_THAT(refusal(completion, deep).first, HasSubstr("at most 32 levels"));
  EXPECT_THAT(refusal(completion, "{\"prompt\": " + deep).first, HasSubstr("at most 32 levels"));
}

TEST(ApiRequestTest, ChatHasMessages) {
  const ApiRequest request = chat(
      R"({"messages": [{"role": "system", "content": "Be brief."},
                       {"role": "user", "content": [{"type": "text", "text": "Hi"},
                                                    {"type": "text", "text": "!"}], "name": "x"}],
          "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2, "tools": [],
          "response_format": {"type": "text"}})");
  ASSERT_EQ(request.messages.size(), 2U);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "Hi!");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.num_top, 2);
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": ""}], "logprobs": false})").num_top,
            -1);
  for (const auto& [body, message] : std::vector<std::pair<const char*, const char*>>{
           {R"({})", "messages: expected a list of messages, got none"},
           {R"({"messages": []})", "messages: expected a list of messages, at least one"},
           {R"({"messages": ["a"]})", "messages: expected objects with role and content"},
           {R"({"messages": [{"role": "user"}]})", "messages: expected objects with role and"},
           {R"({"messages": [{"role": "user", "content": 5}]})", "messages: content: expected"},
           {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
            "messages: content: expected a string or a list"},
           {R"({"messages": [{"role": "user", "content": "", "x": 1}]})",
            "messages: expected role"},
           {R"({"messages": [{"role": "user", "content": ""}], "top_logprobs": 2})",
            "top_logprobs: expected logprobs: true"},
           {R"({"messages": [{"role": "user", "content": ""}], "tools": [{}]})",
            "tools: expected nothing"},
           {R"({"prompt": "a"})", "prompt: unknown field"}}) {
    EXPECT_THAT(refusal(chat, body).first, StartsWith(message)) << body;
  }
}

}  // namespace
}  // namespace deltatrain::serve
