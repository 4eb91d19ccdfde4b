// HTTP/1.1 over TCP: many connections on one thread, requests handled on a few others.
//
// Connections are read and written as their sockets allow: a slow reader or writer holds no thread,
// and one that makes no progress in time is closed. Sizes of headers and bodies are limited before
// they are read. A client that goes away while its request is handled is noticed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace deltatrain::serve {

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without what follows a question mark
  std::string authorization;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // besides those of every answer
};

// One request's answer, given at once or as a stream. From any thread; what comes too late, or after
// the client has gone, is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void respond(HttpResponse response) = 0;
  virtual void start_stream(const std::string& content_type) = 0;
  virtual void write(std::string bytes) = 0;  // of a stream
  virtual void end_stream() = 0;
  // Runs `work` on one of the server's threads that handle requests.
  virtual void run(std::function<void()> work) = 0;
  // The client has gone, or the time is over. Nobody waits for the answer.
  virtual bool is_closed() const = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any that is free
  int64_t max_body_bytes = int64_t{8} << 20;
  int64_t max_connections = 512;
  int64_t max_unsent_bytes = int64_t{64} << 20;    // of a stream whose reader is slow
  int num_threads = 2;                             // that handle requests
  std::chrono::milliseconds request_time{600000};  // from the whole request to the whole answer
  std::chrono::milliseconds read_time{30000};      // for a request's bytes
  std::chrono::milliseconds write_time{30000};     // without any progress
  std::chrono::milliseconds idle_time{60000};      // between requests
};

struct HttpStats {
  std::atomic<int64_t> connections{0};  // now
  std::atomic<int64_t> refused_connections{0};
  std::atomic<int64_t> timed_out{0};
  std::atomic<int64_t> gone{0};  // clients that left before their answer
};

class HttpServer {
 public:
  // `handle` runs on one of the server's threads and answers through the exchange, then or later.
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;
  // The body of an answer that the server gives by itself.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  // Listens; serves from start() on. DeviceError when the port cannot be had.
  HttpServer(const HttpOptions& options, Handler handle, ErrorBody error_body);
  ~HttpServer();  // as stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();
  uint16_t port() const;
  const HttpStats& stats() const;
  // Takes no more connections and requests; answers under way go on.
  void stop_accepting();
  int64_t num_exchanges() const;  // answers under way
  void stop();                    // closes all

  struct Implementation;

 private:
  std::shared_ptr<Implementation> implementation_;  // shared with its connections
};

}  // namespace deltatrain::serve
