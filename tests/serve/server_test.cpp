// The server over HTTP: what it answers, and what it does with clients that misbehave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "eval/completions.h"
#include "eval/scorer.h"
#include "model/initialization.h"
#include "serve/http_client.h"
#include "serve/small_server.h"

namespace deltatrain::serve {
namespace {

using test::ClientResponse;
using test::HttpClient;
using test::SmallServer;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr const char* kCompletions = "/v1/completions";

Json parsed(const ClientResponse& response, int status = 200) {
  EXPECT_EQ(response.status, status) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  return Json::parse(response.body);
}

class ServerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new SmallServer; }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  static Json complete(const Json& body) {
    return parsed(test::http(server_->port(), "POST", kCompletions, body.dump()));
  }
  static std::vector<int32_t> random_ids(std::mt19937& random, int64_t count) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % 420));
    return ids;
  }
  static void expect_refusal(const ClientResponse& response, int status,
                             const std::string& message) {
    const Json error = parsed(response, status).at("error");
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr(message));
    EXPECT_EQ(error.at("code"), status);
    EXPECT_TRUE(error.contains("type"));
  }

  static SmallServer* server_;
};

SmallServer* ServerTest::server_ = nullptr;

// Read as the harness reads answers, the scores are those of `eval`'s own scorer.
TEST_F(ServerTest, ScoresAreThoseOfTheScorer) {
  std::mt19937 random(5);
  std::vector<eval::TokenRequest> requests;
  std::vector<int64_t> context_lengths;
  Json prompts = Json::array();
  for (const int64_t length : {1, 3, 63, 64, 65, 130, 300, 590}) {
    eval::TokenRequest request{random_ids(random, length), random_ids(random, 1 + length % 9)};
    std::vector<int32_t> ids = request.context;
    ids.insert(ids.end(), request.continuation.begin(), request.continuation.end());
    prompts.push_back(ids);
    context_lengths.push_back(length);
    requests.push_back(std::move(request));
  }
  const Json response = complete({{"model", "any"},
                                  {"prompt", prompts},
                                  {"temperature", 0},
                                  {"max_tokens", 1},
                                  {"logprobs", 1},
                                  {"seed", 1234},
                                  {"echo", true}});
  const auto got = eval::parse_completions(response, context_lengths);
  eval::Scorer scorer(server_->context(), server_->planning_context(), server_->engine().config(),
                      {.batch_size = 4, .max_length = 600});
  initialize(scorer.context(), scorer.parameters(), 0.1, 5);
  const auto want = scorer.score(requests, silent_reporter());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].log_likelihood, want[i].log_likelihood, 1e-4) << i;
    EXPECT_EQ(got[i].is_greedy, want[i].is_greedy) << i;
  }
}

TEST_F(ServerTest, EchoedArraysHaveTheWholePromptAndWhatCameAfter) {
  const std::vector<int32_t> ids =
      server_->tokenizer().encode("<|bos|>the c\u00e4t \U0001f600", text::AddSpecialTokens::kNo);
  for (const int64_t max_tokens : {0, 1, 4}) {
    const Json response = complete({{"prompt", ids},
                                    {"max_tokens", max_tokens},
                                    {"logprobs", 3},
                                    {"echo", true},
                                    {"ignore_eos", true},
                                    {"temperature", 0}});
    const Json& choice = response.at("choices").at(0);
    const Json& logprobs = choice.at("logprobs");
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      EXPECT_EQ(logprobs.at(list).size(), ids.size() + static_cast<size_t>(max_tokens)) << list;
    EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
    EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
    EXPECT_EQ(logprobs.at("tokens").at(0), "<|bos|>");
    for (size_t i = 1; i < ids.size(); ++i) {
      const Json& top = logprobs.at("top_logprobs").at(i);
      EXPECT_GE(top.size(), 1U);
      EXPECT_LE(top.size(), 4U);
      const std::string own = logprobs.at("tokens").at(i);
      EXPECT_TRUE(top.contains(own)) << own;
      const double value = logprobs.at("token_logprobs").at(i);
      EXPECT_LE(value, 0);
      EXPECT_EQ(value, static_cast<double>(static_cast<float>(value)));
    }
    EXPECT_THAT(choice.at("text").get<std::string>(), StartsWith("<|bos|>the c\u00e4t \U0001f600"));
    EXPECT_EQ(logprobs.at("text_offset").at(0), 0);
    EXPECT_EQ(logprobs.at("text_offset").at(1), 7);
    EXPECT_EQ(choice.at("finish_reason"), "length");
    EXPECT_EQ(response.at("usage").at("prompt_tokens"), ids.size());
    EXPECT_EQ(response.at("usage").at("completion_tokens"), max_tokens);
  }
  // Without echo, of what was generated alone.
  const Json plain = complete({{"prompt", ids}, {"max_tokens", 4}, {"logprobs", 0}, {"seed", 1}});
  EXPECT_LE(plain.at("choices").at(0).at("logprobs").at("tokens").size(), 4U);
  EXPECT_EQ(plain.at("choices").at(0).at("logprobs").at("text_offset").at(0), 0);
  EXPECT_TRUE(complete({{"prompt", ids}}).at("choices").at(0).at("logprobs").is_null());
}

TEST_F(ServerTest, TheEndOfTheTextIsAnEntryWithoutText) {
  // Prompts of one and two tokens until one is followed by the end.
  std::vector<int32_t> found;
  for (int32_t first = 0; first < 40 && found.empty(); ++first) {
    Json prompts = Json::array();
    for (int32_t second = 0; second < 250; ++second) prompts.push_back({first, second});
    const Json response =
        complete({{"prompt", prompts}, {"max_tokens", 1}, {"temperature", 0}, {"logprobs", 0}});
    for (const Json& choice : response.at("choices")) {
      if (choice.at("logprobs").at("tokens").at(0) == "<|eos|>")
        found = prompts.at(choice.at("index").get<size_t>()).get<std::vector<int32_t>>();
    }
  }
  ASSERT_FALSE(found.empty());
  Json body = {
      {"prompt", found}, {"max_tokens", 5}, {"temperature", 0}, {"logprobs", 1}, {"echo", true}};
  const Json choice = complete(body).at("choices").at(0);
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs").size(), 3U);
  EXPECT_EQ(choice.at("logprobs").at("tokens").at(2), "<|eos|>");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  body["echo"] = false;
  EXPECT_EQ(complete(body).at("choices").at(0).at("text"), "");
  body["ignore_eos"] = true;
  EXPECT_EQ(complete(body).at("choices").at(0).at("logprobs").at("tokens").size(), 5U);
}

TEST_F(ServerTest, ChoicesAreNumberedByPromptAndSample) {
  const Json response = complete({{"prompt", {"the cat", "a", "the dog and"}},
                                  {"n", 2},
                                  {"max_tokens", 6},
                                  {"seed", 7},
                                  {"ignore_eos", true}});
  ASSERT_EQ(response.at("choices").size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    const Json& choice = response.at("choices").at(i);
    EXPECT_EQ(choice.at("index"), i);
    // As asked alone, with the sample's seed.
    const Json alone =
        complete({{"prompt", std::vector<std::string>{"the cat", "a", "the dog and"}[i / 2]},
                  {"max_tokens", 6},
                  {"seed", 7 + i % 2},
                  {"ignore_eos", true}});
    EXPECT_EQ(alone.at("choices").at(0).at("text"), choice.at("text"));
  }
  EXPECT_EQ(response.at("usage").at("completion_tokens"), 36);
}

TEST_F(ServerTest, StreamsAreTheWholeAnswerInPieces) {
  for (const bool echo : {false, true}) {
    Json body = {{"prompt", {"the cat", "and"}},
                 {"max_tokens", 40},
                 {"seed", 3},
                 {"n", 2},
                 {"logprobs", 2},
                 {"echo", echo},
                 {"ignore_eos", true}};
    const Json whole = complete(body);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const ClientResponse response = test::http(server_->port(), "POST", kCompletions, body.dump());
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    const std::vector<std::string> events = test::events_of(response);
    ASSERT_GT(events.size(), 50U);
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(Json::parse(events[events.size() - 2]).at("usage"), whole.at("usage"));
    std::vector<Json> joined(4, Json::object());
    for (size_t i = 0; i + 2 < events.size(); ++i) {
      const Json event = Json::parse(events[i]);  // which refuses ill-formed UTF-8
      const Json& choice = event.at("choices").at(0);
      Json& target = joined[choice.at("index").get<size_t>()];
      EXPECT_FALSE(target.contains("finish_reason")) << "more after the end";
      target["text"] = target.value("text", "") + choice.at("text").get<std::string>();
      for (const auto& item : choice.at("logprobs").items()) {
        for (const Json& entry : item.value()) target["logprobs"][item.key()].push_back(entry);
      }
      if (!choice.at("finish_reason").is_null())
        target["finish_reason"] = choice.at("finish_reason");
    }
    for (size_t i = 0; i < 4; ++i) {
      for (const char* field : {"text", "logprobs", "finish_reason"})
        EXPECT_EQ(joined[i].at(field), whole.at("choices").at(i).at(field)) << i << " " << field;
    }
  }
}

TEST_F(ServerTest, StopStringsEndTheTextBeforeThem) {
  Json body = {{"prompt", "the"}, {"max_tokens", 60}, {"seed", 11}, {"ignore_eos", true}};
  const std::string whole = complete(body).at("choices").at(0).at("text");
  ASSERT_GT(whole.size(), 20U);
  // A stretch of ASCII in the middle of it.
  size_t at = whole.size() / 3;
  while (at + 2 < whole.size() && (whole[at] < 0 || whole[at + 1] < 0)) ++at;
  const std::string stop = whole.substr(at, 2);
  const std::string before = whole.substr(0, whole.find(stop));
  body["stop"] = {"never this text", stop};
  const Json stopped = complete(body);
  EXPECT_EQ(stopped.at("choices").at(0).at("text"), before);
  EXPECT_EQ(stopped.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_LT(stopped.at("usage").at("completion_tokens"), 60);
  body["stream"] = true;
  std::string streamed;
  for (const std::string& event :
       test::events_of(test::http(server_->port(), "POST", kCompletions, body.dump()))) {
    if (event != "[DONE]")
      streamed += Json::parse(event).at("choices").at(0).at("text").get<std::string>();
  }
  EXPECT_EQ(streamed, before);
}

TEST_F(ServerTest, StringPromptsGetNoTokensInFront) {
  const auto tokens = [](const Json& body) {
    return complete(body).at("choices").at(0).at("logprobs").at("tokens");
  };
  Json body = {{"prompt", "the"}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}};
  const Json plain = tokens(body);
  EXPECT_NE(plain.at(0), "<|bos|>");
  body["prompt"] = "<|bos|>the";  // spelled out, it is the token
  const Json spelled = tokens(body);
  EXPECT_EQ(spelled.at(0), "<|bos|>");
  EXPECT_EQ(spelled.size(), plain.size() + 1);
  body["prompt"] = "the";
  body["add_special_tokens"] = true;
  EXPECT_EQ(tokens(body), spelled);
  body["prompt"] = "";
  EXPECT_EQ(tokens(body).at(0), "<|bos|>") << "something has to be there to start from";
}

TEST_F(ServerTest, WithoutASeedAnswersDiffer) {
  std::set<std::string> texts;
  for (int i = 0; i < 4; ++i)
    texts.insert(complete({{"prompt", "the"}, {"max_tokens", 20}}).at("choices").at(0).at("text"));
  EXPECT_GT(texts.size(), 1U);
}

TEST_F(ServerTest, OtherPaths) {
  const uint16_t port = server_->port();
  EXPECT_EQ(parsed(test::http(port, "GET", "/health")).at("status"), "ok");
  const Json models = parsed(test::http(port, "GET", "/v1/models"));
  EXPECT_EQ(models.at("data").at(0).at("id"), "small");
  const ClientResponse page = test::http(port, "GET", "/?x=1");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(page.headers.at("content-security-policy"), HasSubstr("default-src 'none'"));
  const ClientResponse head = test::http(port, "HEAD", "/health", "", "Connection: close\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "15");
  EXPECT_EQ(head.body, "");
  expect_refusal(test::http(port, "GET", "/v1/nothing"), 404, "no such path");
  expect_refusal(test::http(port, "GET", kCompletions), 405, "expected POST, got GET");
  expect_refusal(test::http(port, "POST", "/v1/chat/completions",
                            R"({"messages": [{"role": "user", "content": "Hi"}]})"),
                 400, "chat template");
}

TEST_F(ServerTest, RefusesAndGoesOn) {
  HttpClient client(server_->port());  // one connection: refusals do not end it
  expect_refusal(client.request("POST", kCompletions, "{"), 400, "expected JSON");
  expect_refusal(client.request("POST", kCompletions, R"({"prompt": "a", "max_tokens": 601})"), 400,
                 "at most 600 tokens together");
  expect_refusal(client.request("POST", kCompletions, R"({"prompt": [424]})"), 400,
                 "token ids from 0 to 423, got 424");
  expect_refusal(client.request("POST", kCompletions, R"({"prompt": "a", "n": 17})"), 400,
                 "n: expected a number from 1 to 16, got 17");
  Json too_long = {{"prompt", std::string(5000, 'x')}};
  expect_refusal(client.request("POST", kCompletions, too_long.dump()), 400,
                 "prompt and max_tokens: expected at most 600 tokens together");
  Json too_many = {{"prompt", Json::array()}};
  for (int i = 0; i < 300; ++i) too_many["prompt"].push_back("a");
  expect_refusal(client.request("POST", kCompletions, too_many.dump()), 400, "at most 256 prompts");
  EXPECT_EQ(client.request("POST", kCompletions, R"({"prompt": "a"})").status, 200);
}

TEST_F(ServerTest, HttpThatIsNone) {
  for (const char* bytes :
       {"\x16\x03\x01\x02 not http\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"}) {
    HttpClient client(server_->port());
    client.send(bytes);
    EXPECT_EQ(client.read_response().status, 400) << bytes;
    EXPECT_EQ(client.receive(1), "") << "and the end of the connection";
  }
  HttpClient long_header(server_->port());
  long_header.send("GET / HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n");
  EXPECT_EQ(long_header.read_response().status, 431);
  EXPECT_EQ(test::http(server_->port(), "GET", "/health").status, 200);
}

TEST_F(ServerTest, ConnectionsAreKeptWhereAskedFor) {
  const std::string get = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  HttpClient client(server_->port());
  client.send(get + get);  // two at once
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(client.read_response().status, 200);
  client.send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read_response().headers.at("connection"), "close");
  EXPECT_EQ(client.receive(1), "");

  // Without chunks, the end of the connection ends a stream.
  HttpClient old(server_->port());
  const std::string body =
      R"({"prompt": "a", "max_tokens": 3, "stream": true, "ignore_eos": true})";
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body);
  const ClientResponse response = old.read_response();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_EQ(test::events_of(response).back(), "[DONE]");

  HttpClient careful(server_->port());
  careful.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_THAT(careful.receive(100), StartsWith("HTTP/1.1 100"));
  careful.send(body);
  EXPECT_EQ(careful.read_response().status, 200);
}

TEST_F(ServerTest, ClientsThatGoAreNoticed) {
  const auto generated = [] { return server_->engine().stats().generated_tokens.load(); };
  for (const bool stream : {false, true}) {
    const Json body = {
        {"prompt", "a"}, {"max_tokens", 590}, {"ignore_eos", true}, {"stream", stream}};
    const int64_t before = generated();
    HttpClient client(server_->port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                std::to_string(body.dump().size()) + "\r\n\r\n" + body.dump());
    while (generated() < before + 5) std::this_thread::yield();
    client.close();
    ASSERT_TRUE(server_->is_idle_soon());
    EXPECT_LT(generated(), before + 590) << "nobody waited for the rest";
  }
  EXPECT_GE(server_->http_server().stats().gone, 2);
}

TEST_F(ServerTest, MetricsCountWhatHappened) {
  const auto value = [](const std::string& name) {
    const std::string text = test::http(server_->port(), "GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + name.size() + 2));
  };
  const std::string ok = "deltatrain_http_requests_total{path=\"/v1/completions\",code=\"200\"}";
  const std::string bad = "deltatrain_http_requests_total{path=\"/v1/completions\",code=\"400\"}";
  const std::vector<std::string> names = {ok, bad, "deltatrain_request_seconds_count",
                                          "deltatrain_first_token_seconds_bucket{le=\"+Inf\"}",
                                          "deltatrain_generated_tokens_total"};
  std::vector<double> before;
  for (const std::string& name : names) before.push_back(value(name));
  complete({{"prompt", "a"}, {"max_tokens", 7}, {"ignore_eos", true}});
  test::http(server_->port(), "POST", kCompletions, "{}");
  const std::vector<double> added = {1, 1, 1, 1, 7};
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(value(names[i]) - before[i], added[i]) << names[i];
  EXPECT_EQ(value("deltatrain_streams"), 0);
  const ClientResponse response = test::http(server_->port(), "GET", "/metrics");
  EXPECT_EQ(response.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
}

TEST(ServerChatTest, ConversationsGoThroughTheModelsTemplate) {
  SmallServer::Options options;
  options.chat_template =
      "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
      "{{ raise_exception('no role ' + m.role) }}{% endif %}<|{{ m.role }}|>{{ m.content }}\n"
      "{% endfor %}{{ bos_token }}<|assistant|>";
  SmallServer server(options);
  const auto chat = [&](const Json& body, int status = 200) {
    return parsed(test::http(server.port(), "POST", "/v1/chat/completions", body.dump()), status);
  };
  Json body = {{"messages", {{{"role", "user"}, {"content", "the cat"}}}},
               {"max_tokens", 12},
               {"seed", 3},
               {"logprobs", true},
               {"top_logprobs", 2},
               {"ignore_eos", true}};
  const Json answer = chat(body);
  EXPECT_EQ(answer.at("object"), "chat.completion");
  const Json& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  const Json& content = choice.at("logprobs").at("content");
  ASSERT_EQ(content.size(), 12U);
  EXPECT_EQ(content.at(0).at("top_logprobs").size(), 2U);
  // What the template writes is a prompt like any other.
  const Json plain = parsed(test::http(server.port(), "POST", kCompletions,
                                       Json{{"prompt", "<|user|>the cat\n<|bos|><|assistant|>"},
                                            {"max_tokens", 12},
                                            {"seed", 3},
                                            {"logprobs", 2},
                                            {"ignore_eos", true}}
                                           .dump()));
  EXPECT_EQ(choice.at("message").at("content"), plain.at("choices").at(0).at("text"));
  EXPECT_EQ(answer.at("usage"), plain.at("usage"));
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(content.at(i).at("logprob"),
              plain.at("choices").at(0).at("logprobs").at("token_logprobs").at(i));
    EXPECT_EQ(content.at(i).at("token"),
              plain.at("choices").at(0).at("logprobs").at("tokens").at(i));
  }

  body["stream"] = true;
  const auto events =
      test::events_of(test::http(server.port(), "POST", "/v1/chat/completions", body.dump()));
  ASSERT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_EQ(event.at("object"), "chat.completion.chunk");
    const Json& delta = event.at("choices").at(0).at("delta");
    EXPECT_EQ(delta.contains("role"), i == 0);
    text += delta.at("content").get<std::string>();
  }
  EXPECT_EQ(text, choice.at("message").at("content"));

  const Json refused = chat({{"messages", {{{"role", "tool"}, {"content", ""}}}}}, 400);
  EXPECT_THAT(refused.at("error").at("message").get<std::string>(), HasSubstr("no role tool"));
  EXPECT_EQ(refused.at("error").at("param"), "messages");
}

TEST(ServerLimitsTest, AKeyIsAskedFor) {
  SmallServer::Options options;
  options.api_key = "secret";
  SmallServer server(options);
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  for (const char* header : {"", "Authorization: Bearer \r\n", "Authorization: Bearer secret2\r\n",
                             "Authorization: secret\r\n", "Authorization: Bearer secreT\r\n"}) {
    const ClientResponse response = test::http(server.port(), "POST", kCompletions, body, header);
    EXPECT_EQ(response.status, 401) << header;
    EXPECT_EQ(response.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(test::http(server.port(), "GET", "/metrics", "", header).status, 401);
  }
  const char* right = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(test::http(server.port(), "POST", kCompletions, body, right).status, 200);
  EXPECT_EQ(test::http(server.port(), "GET", "/v1/models", "", right).status, 200);
  EXPECT_EQ(test::http(server.port(), "GET", "/health").status, 200) << "for those who watch it";
}

TEST(ServerLimitsTest, LargeBodiesAreRefusedUnread) {
  SmallServer::Options options;
  options.http.max_body_bytes = 1000;
  SmallServer server(options);
  const std::string body = Json{{"prompt", std::string(2000, 'x')}}.dump();
  const ClientResponse known = test::http(server.port(), "POST", kCompletions, body);
  EXPECT_EQ(known.status, 413);
  EXPECT_THAT(known.body, HasSubstr("at most 1000 bytes"));
  HttpClient chunked(server.port());
  chunked.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
      std::string(2000, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);
  EXPECT_EQ(test::http(server.port(), "POST", kCompletions, R"({"prompt": "a"})").status, 200);
}

TEST(ServerLimitsTest, AFullQueueIs503) {
  SmallServer::Options options;
  options.engine = {.num_streams = 1, .num_prompts = 1, .max_length = 600, .max_queue = 2};
  SmallServer server(options);
  const std::string long_body =
      R"({"prompt": "a", "max_tokens": 590, "ignore_eos": true, "seed": 1})";
  const auto ask = [&](HttpClient& client) {
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                std::to_string(long_body.size()) + "\r\n\r\n" + long_body);
  };
  HttpClient running(server.port());
  ask(running);
  while (server.engine().stats().streams == 0) std::this_thread::yield();
  // A batch that the rest of the queue cannot take is refused as a whole.
  HttpClient waiting(server.port());
  ask(waiting);
  while (server.engine().stats().waiting == 0) std::this_thread::yield();
  const ClientResponse refused =
      test::http(server.port(), "POST", kCompletions, R"({"prompt": ["a", "b"]})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  const std::string text = Json::parse(running.read_response().body).at("choices").at(0).at("text");
  EXPECT_EQ(Json::parse(waiting.read_response().body).at("choices").at(0).at("text"), text);
  EXPECT_EQ(test::http(server.port(), "POST", kCompletions, R"({"prompt": ["a", "b"]})").status,
            200);
}

TEST(ServerLimitsTest, TimeIsLimited) {
  using std::chrono::milliseconds;
  SmallServer::Options options;
  options.engine.max_length = 1 << 20;
  options.http.request_time = milliseconds(300);
  options.http.read_time = milliseconds(200);
  SmallServer server(options);
  const std::string endless = R"("prompt": "a", "max_tokens": 1000000, "ignore_eos": true)";
  const ClientResponse late = test::http(server.port(), "POST", kCompletions, "{" + endless + "}");
  EXPECT_EQ(late.status, 504);
  EXPECT_THAT(late.body, HasSubstr("within 300 ms"));
  const ClientResponse cut =
      test::http(server.port(), "POST", kCompletions, "{" + endless + ", \"stream\": true}");
  EXPECT_EQ(cut.status, 200);
  const auto events = test::events_of(cut);
  EXPECT_NE(events.empty() ? "" : events.back(), "[DONE]")
      << "what was cut off does not look whole";
  HttpClient slow(server.port());
  slow.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"pro");
  EXPECT_EQ(slow.read_response().status, 408);
  HttpClient silent(server.port());
  EXPECT_EQ(silent.receive(1), "") << "nothing was asked";
  EXPECT_TRUE(server.is_idle_soon());
}

TEST(ServerLimitsTest, SlowReadersHoldUpNobody) {
  SmallServer::Options options;
  options.http.write_time = std::chrono::milliseconds(500);
  SmallServer server(options);
  Json prompts = Json::array();
  for (int i = 0; i < 120; ++i) prompts.push_back(std::vector<int32_t>(590, i));
  const std::string body =
      Json{{"prompt", prompts}, {"max_tokens", 1}, {"logprobs", 20}, {"echo", true}}.dump();
  HttpClient slow(server.port());
  slow.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body);
  while (server.engine().stats().generated_tokens < 120) std::this_thread::yield();
  EXPECT_EQ(test::http(server.port(), "POST", kCompletions, R"({"prompt": "a"})").status, 200);
  // Tens of megabytes do not fit the sockets' buffers: without progress, the connection ends.
  EXPECT_TRUE(server.is_idle_soon());
  EXPECT_EQ(server.http_server().stats().gone, 1);
}

TEST(ServerLimitsTest, TooManyConnectionsAreClosed) {
  SmallServer::Options options;
  options.http.max_connections = 2;
  SmallServer server(options);
  HttpClient first(server.port()), second(server.port());
  EXPECT_EQ(first.request("GET", "/health").status, 200);
  EXPECT_EQ(second.request("GET", "/health").status, 200);
  EXPECT_EQ(test::http(server.port(), "GET", "/health").status, 0);
  second.close();
  while (server.http_server().stats().connections > 1) std::this_thread::yield();
  EXPECT_EQ(test::http(server.port(), "GET", "/health").status, 200);
  EXPECT_EQ(server.http_server().stats().refused_connections, 1);
}

TEST(ServerLimitsTest, AnswersUnderWayAreGivenBeforeTheEnd) {
  SmallServer server;
  const std::string body =
      R"({"prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": true})";
  HttpClient idle(server.port()), client(server.port());
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  while (server.engine().stats().generated_tokens < 3) std::this_thread::yield();
  server.http_server().stop_accepting();
  const ClientResponse response = client.read_response();
  EXPECT_EQ(test::events_of(response).back(), "[DONE]");
  EXPECT_EQ(idle.receive(1), "");
  EXPECT_TRUE(server.is_idle_soon());
  EXPECT_THROW(HttpClient(server.port()), std::runtime_error);
}

TEST(ServerLimitsTest, LogitsThatAreNotNumbersAre500) {
  SmallServer::Options options;
  options.has_broken_weights = true;
  SmallServer server(options);
  for (const char* body : {R"({"prompt": "a"})", R"({"prompt": "a", "temperature": 0})",
                           R"({"prompt": "a", "stream": true})",
                           R"({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": 0})"}) {
    const ClientResponse response = test::http(server.port(), "POST", kCompletions, body);
    EXPECT_EQ(response.status, 500) << body;
    EXPECT_THAT(response.body, HasSubstr("NaN")) << body;
  }
}

TEST(ServerStartTest, ATakenPortIsAnErrorOfTheEnvironment) {
  SmallServer server;
  try {
    HttpOptions same;
    same.port = server.port();
    HttpServer second(same, {}, {});
    FAIL() << "two servers on one port";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(server.port())));
  }
}

}  // namespace
}  // namespace deltatrain::serve
