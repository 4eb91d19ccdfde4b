// Many clients at once, of whom some leave, some send nonsense and some read slowly. Every answer that
// is given has to be the one that its request gets alone.
//
// DELTATRAIN_STRESS_REQUESTS says how many requests; the test labelled slow takes 10,000.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "serve/http_client.h"
#include "serve/small_server.h"

namespace deltatrain::serve {
namespace {

using test::ClientResponse;
using test::HttpClient;
using test::SmallServer;
using Json = nlohmann::ordered_json;

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// Requests of many kinds, all with a seed, so that each has one right answer.
std::vector<Json> request_bodies() {
  std::mt19937 random(17);
  const auto ids = [&](int64_t count) {
    Json list = Json::array();
    for (int64_t i = 0; i < count; ++i) list.push_back(random() % 420);
    return list;
  };
  const Json shared = ids(200);
  std::vector<Json> bodies;
  for (int64_t i = 0; i < 60; ++i) {
    const int64_t length = i % 6 == 0 ? 130 + i : 1 + (i * 7) % 70;
    Json body = {{"prompt", ids(length)}, {"seed", i}, {"max_tokens", 1 + i % 12}};
    if (i % 4 == 0) {
      for (size_t j = 0; j < body["prompt"].size() && j < 150; ++j) body["prompt"][j] = shared[j];
    }
    if (i % 5 == 0) body["prompt"] = Json::array({body["prompt"], ids(5), shared});
    if (i % 3 == 0) body["temperature"] = 0;
    if (i % 3 == 1) body["top_p"] = 0.9;
    if (i % 4 == 1) body["n"] = 1 + i % 3;
    if (i % 2 == 0) body["logprobs"] = i % 6;
    if (i % 8 == 0) body["echo"] = true;
    if (i % 7 == 0) body["stop"] = {"e", "\n"};
    if (i % 11 == 0) body["prompt"] = "the cat and the dog";
    bodies.push_back(std::move(body));
  }
  return bodies;
}

// What of an answer has to be equal: all but its name and time.
Json essence(const Json& answer) {
  return {{"choices", answer.at("choices")}, {"usage", answer.at("usage")}};
}

std::string framed(const std::string& body) {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

class Crowd {
 public:
  Crowd(SmallServer& server, const std::vector<Json>& bodies, const std::vector<Json>& answers)
      : server_(server), bodies_(bodies), answers_(answers) {}

  void run(int64_t num_requests) {
    left_ = num_requests;
    std::vector<std::thread> threads;
    for (unsigned client = 0; client < 64; ++client)
      threads.emplace_back([this, client] { one_client(client); });
    for (std::thread& thread : threads) thread.join();
  }

  std::atomic<int64_t> num_right{0}, num_wrong{0}, num_refused{0}, num_left{0}, num_slow{0};

 private:
  void check(const ClientResponse& response, const Json& want) {
    const Json got = response.status == 200 ? Json::parse(response.body, nullptr, false) : Json();
    const bool is_right = got.is_object() && essence(got) == want;
    ++(is_right ? num_right : num_wrong);
  }

  void one_client(unsigned client) {
    std::mt19937 random(client);
    auto connection = std::make_unique<HttpClient>(server_.port());
    while (left_.fetch_sub(1) > 0) {
      const size_t at = random() % bodies_.size();
      const std::string body = bodies_[at].dump();
      switch (random() % 12) {
        case 0: {  // leaves while it is owed an answer
          HttpClient gone(server_.port());
          gone.send(framed(body));
          if (random() % 2 == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
          ++num_left;
          break;
        }
        case 1: {  // leaves in the middle of its request
          HttpClient gone(server_.port());
          gone.send(framed(body).substr(0, 40 + random() % 60));
          ++num_left;
          break;
        }
        case 2: {  // no request
          std::string bad = body.substr(0, body.size() - 1 - random() % (body.size() / 2));
          const ClientResponse response = connection->request("POST", "/v1/completions", bad);
          ++(response.status == 400 ? num_refused : num_wrong);
          break;
        }
        case 3: {  // too long
          Json longer = bodies_[at];
          longer["prompt"] = Json::array();
          for (int i = 0; i < 700; ++i) longer["prompt"].push_back(1);
          const ClientResponse response =
              connection->request("POST", "/v1/completions", longer.dump());
          ++(response.status == 400 ? num_refused : num_wrong);
          break;
        }
        case 4: {  // reads slowly, on a connection of its own
          HttpClient slow(server_.port());
          slow.send(framed(body));
          std::string bytes;
          for (int i = 0; i < 5; ++i) {
            bytes += slow.receive(16);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          for (std::string more;
               bytes.find("\r\n\r\n") == std::string::npos && !(more = slow.receive(64)).empty();)
            bytes += more;
          const size_t end = bytes.find("\r\n\r\n") + 4;
          const size_t length = std::stoul(bytes.substr(bytes.find("Content-Length: ") + 16));
          for (std::string more;
               bytes.size() < end + length && !(more = slow.receive(999)).empty();)
            bytes += more;
          check({.status = 200, .body = bytes.substr(end)}, answers_[at]);
          ++num_slow;
          break;
        }
        case 5: {  // as a stream: whole, and its pieces are those of the answer
          Json streamed = bodies_[at];
          streamed["stream"] = true;
          const auto events =
              test::events_of(connection->request("POST", "/v1/completions", streamed.dump()));
          std::vector<std::string> texts(answers_[at].at("choices").size());
          for (size_t i = 0; i + 1 < events.size(); ++i) {
            const Json choice = Json::parse(events[i]).at("choices").at(0);
            texts[choice.at("index").get<size_t>()] += choice.at("text").get<std::string>();
          }
          bool is_right = !events.empty() && events.back() == "[DONE]";
          for (size_t i = 0; i < texts.size(); ++i)
            is_right = is_right && texts[i] == answers_[at].at("choices").at(i).at("text");
          ++(is_right ? num_right : num_wrong);
          break;
        }
        default:
          check(connection->request("POST", "/v1/completions", body), answers_[at]);
      }
    }
  }

  SmallServer& server_;
  const std::vector<Json>& bodies_;
  const std::vector<Json>& answers_;
  std::atomic<int64_t> left_{0};
};

TEST(StressTest, ManyClientsGetWhatEachGetsAlone) {
  const char* const given = std::getenv("DELTATRAIN_STRESS_REQUESTS");
  const int64_t num_requests = given == nullptr ? 600 : std::atoll(given);
  SmallServer::Options options;
  options.engine.num_streams = 24;
  options.engine.num_prompts = 8;
  options.engine.max_queue = 4096;
  SmallServer server(options);
  const std::vector<Json> bodies = request_bodies();
  std::vector<Json> answers;
  for (const Json& body : bodies) {
    const ClientResponse response =
        test::http(server.port(), "POST", "/v1/completions", body.dump());
    ASSERT_EQ(response.status, 200) << response.body;
    answers.push_back(essence(Json::parse(response.body)));
  }

  Crowd crowd(server, bodies, answers);
  crowd.run(num_requests / 3);  // until then memory grows to what it needs
  ASSERT_TRUE(server.is_idle_soon());
  const int64_t before = resident_bytes();
  crowd.run(num_requests - num_requests / 3);
  ASSERT_TRUE(server.is_idle_soon());
  [[maybe_unused]] const int64_t grown = resident_bytes() - before;

  EXPECT_EQ(crowd.num_wrong, 0);
  EXPECT_GT(crowd.num_right, num_requests / 3);
  EXPECT_GT(crowd.num_refused, num_requests / 20);
  EXPECT_GT(crowd.num_left, num_requests / 20);
  EXPECT_GT(crowd.num_slow, num_requests / 40);
  // A leak of a request's answer alone would be more.
  // The sanitizers hold back what is freed, and keep notes of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(grown, num_requests * 2000 + (int64_t{8} << 20));
#endif
  EXPECT_GT(server.engine().stats().reused_prompt_tokens, 0);
  EXPECT_EQ(server.engine().stats().streams, 0);
  // And afterwards the server answers as at first.
  for (size_t i = 0; i < bodies.size(); i += 7) {
    const ClientResponse response =
        test::http(server.port(), "POST", "/v1/completions", bodies[i].dump());
    EXPECT_EQ(essence(Json::parse(response.body)), answers[i]);
  }
}

}  // namespace
}  // namespace deltatrain::serve
