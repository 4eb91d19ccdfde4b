// Counts and times of a server in Prometheus's text form.
//
// Source: Prometheus text-based exposition format, version 0.0.4.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "serve/engine.h"
#include "serve/http_server.h"

namespace deltatrain::serve {

// How often values of up to each bound came; for times in seconds. From any thread.
class Histogram {
 public:
  void add(double value);
  // Lines of the metric `name`, with its HELP and TYPE.
  std::string text(const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array<double, 13> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,  5,     10,   30,  120};
  mutable std::mutex mutex_;
  std::array<int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

class Metrics {
 public:
  // A request has been answered; 499 where its client had gone.
  void count(const std::string& path, int status);
  Histogram request_seconds;      // of completions, from the request to the whole answer
  Histogram first_token_seconds;  // from the request to its first token

  std::string text(const EngineStats& engine, const HttpStats& http) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

}  // namespace deltatrain::serve
