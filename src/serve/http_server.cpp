#include "serve/http_server.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"

namespace deltatrain::serve {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using ErrorCode = beast::error_code;

constexpr uint32_t kMaxHeaderBytes = 16384;
constexpr size_t kSliceBytes = 65536;  // of an answer, each with a time limit of its own
constexpr std::chrono::seconds kLingerTime{2};
constexpr size_t kLingerBytes = 8192;

std::string chunk_of(const std::string& bytes) {
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

}  // namespace

class Connection;

struct HttpServer::Implementation : std::enable_shared_from_this<HttpServer::Implementation> {
  Implementation(const HttpOptions& given, Handler given_handle, ErrorBody given_body)
      : options(given),
        handle(std::move(given_handle)),
        error_body(std::move(given_body)),
        acceptor(io),
        pause(io),
        pool(static_cast<size_t>(given.num_threads)) {}

  void listen();
  void accept();

  HttpOptions options;
  Handler handle;
  ErrorBody error_body;
  HttpStats stats;
  std::atomic<int64_t> num_exchanges{0};
  std::atomic<bool> is_stopping{false};
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  asio::thread_pool pool;
  std::thread thread;
  uint16_t port = 0;
  std::set<std::shared_ptr<Connection>> connections;  // of the thread of `io`, like all below
};

// A socket and the exchange that it is in. All but is_closed() on the thread of `io`.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Implementation& server, tcp::socket socket)
      : server_(server),
        stream_(std::move(socket)),
        deadline_(server.io),
        buffer_(kMaxHeaderBytes + static_cast<size_t>(server.options.max_body_bytes)) {}

  void start() { read_request(server_.options.read_time); }
  void close();
  void stop_if_idle() {
    if (exchange_ == nullptr && !is_reading_) close();
  }

 private:
  class Answer;

  void read_request(std::chrono::milliseconds time);
  void read_body();
  void handle_request();
  void refuse(int status, const std::string& message);
  void watch();
  void queue(std::string bytes);
  void write_some();
  void finish_answer();
  void linger();
  std::string head(const HttpResponse& response, bool has_length);
  void respond(const HttpResponse& response);
  void start_stream(const std::string& content_type);

  HttpServer::Implementation& server_;
  beast::tcp_stream stream_;
  asio::steady_timer deadline_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Answer> exchange_;  // shared with the handler
  std::deque<std::string> unsent_;
  size_t sent_of_first_ = 0;
  size_t unsent_bytes_ = 0;
  uint64_t num_requests_ = 0;
  bool is_reading_ = false;  // a request has begun
  bool has_timed_out_ = false;
  bool is_writing_ = false;
  bool is_head_ = false;
  bool keeps_alive_ = false;
  bool has_chunks_ = false;
  bool has_begun_ = false;  // to answer
  bool has_ended_ = false;  // nothing more will be queued
  bool is_closed_ = false;
};

// What the handler holds. Outlives the connection, which it never touches from its own thread.
class Connection::Answer : public Exchange {
 public:
  Answer(std::shared_ptr<Connection> connection, std::shared_ptr<HttpServer::Implementation> server)
      : connection_(std::move(connection)), server_(std::move(server)) {
    ++server_->num_exchanges;
  }
  ~Answer() override { finish(); }

  void respond(HttpResponse response) override {
    post(
        [response = std::move(response)](Connection& connection) { connection.respond(response); });
  }
  void start_stream(const std::string& content_type) override {
    post([content_type](Connection& connection) { connection.start_stream(content_type); });
  }
  void write(std::string bytes) override {
    if (bytes.empty()) return;  // an empty chunk would be the end
    post([bytes = std::move(bytes)](Connection& connection) {
      if (!connection.has_begun_ || connection.has_ended_ || connection.is_head_) return;
      connection.queue(connection.has_chunks_ ? chunk_of(bytes) : bytes);
    });
  }
  void end_stream() override {
    post([](Connection& connection) {
      if (!connection.has_begun_ || connection.has_ended_) return;
      connection.has_ended_ = true;
      connection.queue(connection.has_chunks_ && !connection.is_head_ ? "0\r\n\r\n" : "");
    });
  }
  void run(std::function<void()> work) override { asio::post(server_->pool, std::move(work)); }
  bool is_closed() const override { return is_closed_; }

  void mark_closed() { is_closed_ = true; }
  // The answer has been given, or nobody waits for it.
  void finish() {
    if (!is_finished_.exchange(true)) --server_->num_exchanges;
  }

 private:
  // Runs `act` on the connection, unless it is in another exchange by then.
  template <class Act>
  void post(Act act) {
    if (is_closed_) return;
    asio::post(server_->io, [weak = connection_, self = this, act = std::move(act)]() mutable {
      const std::shared_ptr<Connection> connection = weak.lock();
      if (connection != nullptr && connection->exchange_.get() == self && !connection->is_closed_)
        act(*connection);
    });
  }

  std::weak_ptr<Connection> connection_;
  std::shared_ptr<HttpServer::Implementation> server_;
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> is_finished_{false};
};

void Connection::close() {
  if (is_closed_) return;
  is_closed_ = true;
  if (exchange_ != nullptr) {
    exchange_->mark_closed();
    exchange_->finish();
  }
  deadline_.cancel();
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
  unsent_.clear();
  --server_.stats.connections;
  server_.connections.erase(shared_from_this());
}

void Connection::read_request(std::chrono::milliseconds time) {
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(static_cast<uint64_t>(server_.options.max_body_bytes));
  is_reading_ = buffer_.size() > 0;
  if (!is_reading_ && server_.is_stopping) return close();
  stream_.expires_after(time);
  http::async_read_header(
      stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t) {
        if (self->is_closed_) return;
        self->is_reading_ = true;
        if (!error) return self->read_body();
        if (error == http::error::body_limit)
          return self->refuse(413, "body: expected at most " +
                                       std::to_string(self->server_.options.max_body_bytes) +
                                       " bytes, got more");
        if (error == http::error::header_limit)
          return self->refuse(431, "header: expected at most " + std::to_string(kMaxHeaderBytes) +
                                       " bytes, got more");
        if (error.category() == http::make_error_code(http::error::bad_method).category() &&
            error != http::error::end_of_stream && error != http::error::partial_message)
          return self->refuse(400, "request: expected HTTP/1.1, got " + error.message());
        self->close();
      });
}

void Connection::read_body() {
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue"))
    queue("HTTP/1.1 100 Continue\r\n\r\n");
  // A timer of our own: the stream's would close the socket, over which the client is told.
  stream_.expires_never();
  has_timed_out_ = false;
  deadline_.expires_after(server_.options.read_time);
  deadline_.async_wait(
      [self = shared_from_this(), request_number = num_requests_](ErrorCode error) {
        if (error || self->is_closed_ || self->num_requests_ != request_number) return;
        self->has_timed_out_ = true;
        self->stream_.cancel();
      });
  http::async_read(
      stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t) {
        if (self->is_closed_) return;
        if (!error) return self->handle_request();
        self->deadline_.cancel();
        if (error == http::error::body_limit)
          return self->refuse(413, "body: expected at most " +
                                       std::to_string(self->server_.options.max_body_bytes) +
                                       " bytes, got more");
        if (self->has_timed_out_)
          return self->refuse(408, "request: expected within " +
                                       std::to_string(self->server_.options.read_time.count()) +
                                       " ms, got a part of it");
        if (error.category() == http::make_error_code(http::error::bad_method).category() &&
            error != http::error::partial_message)
          return self->refuse(400, "request: expected HTTP/1.1, got " + error.message());
        self->close();
      });
}

void Connection::handle_request() {
  const auto& message = parser_->get();
  const auto text = [](beast::string_view view) { return std::string(view.data(), view.size()); };
  HttpRequest request{.method = text(message.method_string()),
                      .path = text(message.target()),
                      .authorization = text(message[http::field::authorization]),
                      .body = std::move(parser_->get().body())};
  if (const size_t end = request.path.find('?'); end != std::string::npos) request.path.resize(end);
  is_head_ = message.method() == http::verb::head;
  if (is_head_) request.method = "GET";
  keeps_alive_ = message.keep_alive() && !server_.is_stopping;
  has_chunks_ = message.version() >= 11;
  has_begun_ = has_ended_ = false;
  ++num_requests_;
  exchange_ = std::make_shared<Answer>(shared_from_this(), server_.shared_from_this());
  stream_.expires_never();
  deadline_.expires_after(server_.options.request_time);
  deadline_.async_wait(
      [self = shared_from_this(), request_number = num_requests_](ErrorCode error) {
        if (error || self->is_closed_ || self->exchange_ == nullptr ||
            self->num_requests_ != request_number)
          return;
        ++self->server_.stats.timed_out;
        self->exchange_->mark_closed();
        if (self->has_begun_) return self->close();
        self->refuse(504, "request: expected an answer within " +
                              std::to_string(self->server_.options.request_time.count()) + " ms");
      });
  watch();
  asio::post(server_.pool, [server = server_.shared_from_this(), exchange = exchange_,
                            request = std::move(request)]() mutable {
    server->handle(std::move(request), std::move(exchange));
  });
}

// An answer of the server's own, after which the connection is closed: what follows cannot be read.
void Connection::refuse(int status, const std::string& message) {
  keeps_alive_ = false;
  has_begun_ = has_ended_ = false;
  respond({.status = status, .body = server_.error_body(status, message)});
}

// Notices when the client goes while it is owed an answer.
void Connection::watch() {
  stream_.socket().async_wait(
      tcp::socket::wait_read,
      [self = shared_from_this(), request_number = num_requests_](ErrorCode error) {
        if (error || self->is_closed_ || self->exchange_ == nullptr ||
            self->num_requests_ != request_number)
          return;
        char byte = 0;
        const ssize_t count =
            ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (count > 0) return;  // the next request, already
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch();
        ++self->server_.stats.gone;
        self->close();
      });
}

std::string Connection::head(const HttpResponse& response, bool has_length) {
  const auto reason =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(response.status)));
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " +
                     std::string(reason.data(), reason.size()) + "\r\nServer: deltatrain\r\n";
  text += "Content-Type: " + response.content_type + "\r\n";
  text += "X-Content-Type-Options: nosniff\r\n";
  for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
  if (has_length) {
    text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  } else if (has_chunks_) {
    text += "Transfer-Encoding: chunked\r\n";
  } else {
    keeps_alive_ = false;  // the end of the connection is the end of the answer
  }
  text += keeps_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

void Connection::respond(const HttpResponse& response) {
  if (has_begun_) return;
  has_begun_ = has_ended_ = true;
  std::string bytes = head(response, true);
  if (!is_head_) bytes += response.body;
  queue(std::move(bytes));
}

void Connection::start_stream(const std::string& content_type) {
  if (has_begun_) return;
  has_begun_ = true;
  queue(head({.content_type = content_type, .headers = {{"Cache-Control", "no-store"}}}, false));
}

void Connection::queue(std::string bytes) {
  unsent_bytes_ += bytes.size();
  if (!has_ended_ && unsent_bytes_ > static_cast<size_t>(server_.options.max_unsent_bytes)) {
    ++server_.stats.gone;
    return close();
  }
  if (!bytes.empty()) unsent_.push_back(std::move(bytes));
  if (!is_writing_) write_some();
}

void Connection::write_some() {
  if (unsent_.empty()) {
    is_writing_ = false;
    if (has_ended_) finish_answer();
    return;
  }
  is_writing_ = true;
  const std::string& first = unsent_.front();
  const size_t count = std::min(kSliceBytes, first.size() - sent_of_first_);
  stream_.expires_after(server_.options.write_time);
  stream_.async_write_some(asio::buffer(first.data() + sent_of_first_, count),
                           [self = shared_from_this()](ErrorCode error, size_t sent) {
                             if (self->is_closed_) return;
                             if (error) {
                               if (self->exchange_ != nullptr) ++self->server_.stats.gone;
                               return self->close();
                             }
                             self->unsent_bytes_ -= sent;
                             self->sent_of_first_ += sent;
                             if (self->sent_of_first_ == self->unsent_.front().size()) {
                               self->unsent_.pop_front();
                               self->sent_of_first_ = 0;
                             }
                             self->write_some();
                           });
}

void Connection::finish_answer() {
  deadline_.cancel();
  if (exchange_ != nullptr) exchange_->finish();
  exchange_ = nullptr;
  parser_.reset();
  has_begun_ = has_ended_ = false;
  is_reading_ = false;
  if (keeps_alive_) return read_request(server_.options.idle_time);
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(kLingerTime);
  buffer_.clear();
  linger();
}

// Reads on for a moment before closing: closed with bytes unread, the connection would be reset, and
// the client might lose the answer.
void Connection::linger() {
  stream_.async_read_some(buffer_.prepare(kLingerBytes),
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (self->is_closed_) return;
                            if (error) return self->close();
                            self->linger();
                          });
}

void HttpServer::Implementation::listen() {
  const std::string where = options.host + ":" + std::to_string(options.port);
  const auto fail = [&](const ErrorCode& error) {
    throw DeviceError(error_text("serve", where, "an address to listen on", error.message()));
  };
  ErrorCode error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) fail(error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (error) fail(error);
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (error) fail(error);
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) fail(error);
  port = acceptor.local_endpoint(error).port();
  if (error) fail(error);
}

void HttpServer::Implementation::accept() {
  acceptor.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (is_stopping) return;
    if (error) {
      // Out of file descriptors, as a rule: the next try waits for some to be closed.
      pause.expires_after(std::chrono::milliseconds(50));
      return pause.async_wait([this](ErrorCode cancelled) {
        if (!cancelled && !is_stopping) accept();
      });
    }
    if (static_cast<int64_t>(connections.size()) >= options.max_connections) {
      ++stats.refused_connections;  // closed without a word: to answer, it would have to be read
    } else {
      ErrorCode ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      ++stats.connections;
      const auto connection = std::make_shared<Connection>(*this, std::move(socket));
      connections.insert(connection);
      connection->start();
    }
    accept();
  });
}

HttpServer::HttpServer(const HttpOptions& options, Handler handle, ErrorBody error_body)
    : implementation_(
          std::make_shared<Implementation>(options, std::move(handle), std::move(error_body))) {
  implementation_->listen();
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  implementation_->accept();
  implementation_->thread = std::thread([server = implementation_] { server->io.run(); });
}

uint16_t HttpServer::port() const { return implementation_->port; }
const HttpStats& HttpServer::stats() const { return implementation_->stats; }
int64_t HttpServer::num_exchanges() const { return implementation_->num_exchanges; }

void HttpServer::stop_accepting() {
  if (implementation_->is_stopping.exchange(true)) return;
  asio::post(implementation_->io, [server = implementation_] {
    ErrorCode ignored;
    server->acceptor.close(ignored);
    server->pause.cancel();
    const auto all = server->connections;
    for (const auto& connection : all) connection->stop_if_idle();
  });
}

void HttpServer::stop() {
  if (!implementation_->thread.joinable()) return;  // not started, or stopped already
  stop_accepting();
  asio::post(implementation_->io, [server = implementation_] {
    const auto all = server->connections;
    for (const auto& connection : all) connection->close();
  });
  implementation_->thread.join();
  implementation_->pool.join();
  // What was posted after the thread had run out of work holds the server, which holds it.
  implementation_->io.restart();
  implementation_->io.poll();
}

}  // namespace deltatrain::serve
