#include "cli/dashboard.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <chrono>
#include <exception>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "report/page.h"

namespace deltatrain::cli {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using ErrorCode = beast::error_code;

constexpr int64_t kMostBytes = int64_t{1} << 20;  // of metrics in an answer
constexpr uint32_t kMostHeaderBytes = 8192;
constexpr int kMostConnections = 32;
constexpr std::chrono::seconds kPatience{20};  // with a request and with the reader of an answer

// Whole lines of the file from `offset` on; nothing where there are none yet.
std::string lines_from(const std::filesystem::path& path, int64_t offset) {
  std::ifstream file(path, std::ios::binary);
  if (!file.seekg(offset)) return "";
  std::string text(static_cast<size_t>(kMostBytes), '\0');
  file.read(text.data(), kMostBytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  const size_t newline = text.rfind('\n');
  text.resize(newline == std::string::npos ? 0 : newline + 1);
  return text;
}

struct Address {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
};

Address parse_address(const std::string& text) {
  Address address;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) address.host = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  const char* const end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, address.port);
  if (error != std::errc() || stop != end || address.host.empty())
    throw ConfigError(error_text("", "--dashboard", "PORT or HOST:PORT, a port from 0 to 65535",
                                 "\"" + text + "\""));
  return address;
}

}  // namespace

struct Dashboard::Implementation {
  Implementation(Address given, std::filesystem::path run_folder)
      : address(std::move(given)), folder(std::move(run_folder)), acceptor(io) {
    listen();
    accept();
    thread = std::thread([this] {
      // Whatever goes wrong with an answer is no reason to end the training.
      for (bool stopped = false; !stopped;) {
        try {
          io.run();
          stopped = true;
        } catch (const std::exception&) {
        }
      }
    });
  }
  ~Implementation() {
    io.stop();
    thread.join();
  }

  void listen() {
    ErrorCode error;
    tcp::resolver resolver(io);
    const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
    if (!error && found.empty()) error = asio::error::host_not_found;
    if (!error) {
      const tcp::endpoint endpoint = found.begin()->endpoint();
      acceptor.open(endpoint.protocol(), error);
      if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
      if (!error) acceptor.bind(endpoint, error);
      if (!error) acceptor.listen(kMostConnections, error);
    }
    if (error)
      throw DeviceError(address.host + ":" + std::to_string(address.port) +
                        ": cannot be listened on: " + error.message());
  }

  void accept();

  http::response<http::string_body> answer(const http::request<http::empty_body>& request) const;

  Address address;
  std::filesystem::path folder;
  int num_connections = 0;  // counted down by connections, which `io` destroys
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer pause{io};
  std::thread thread;
};

namespace {

http::response<http::string_body> response_of(http::status status, const char* type,
                                              std::string body) {
  http::response<http::string_body> response(status, 11);
  response.set(http::field::content_type, type);
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  response.body() = std::move(body);
  return response;
}

// One browser's connection: requests one after the other. Kept alive by its own callbacks.
template <class Server>
class Connection : public std::enable_shared_from_this<Connection<Server>> {
 public:
  Connection(Server& server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    ++server_.num_connections;
  }
  ~Connection() { --server_.num_connections; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void read() {
    parser_.emplace();
    parser_->header_limit(kMostHeaderBytes);
    parser_->body_limit(0);
    stream_.expires_after(kPatience);
    http::async_read(stream_, buffer_, *parser_,
                     [self = this->shared_from_this()](ErrorCode error, size_t) {
                       if (!error) self->write();
                     });
  }

 private:
  void write() {
    response_ = server_.answer(parser_->get());
    response_.keep_alive(parser_->get().keep_alive());
    response_.prepare_payload();
    stream_.expires_after(kPatience);
    http::async_write(stream_, response_,
                      [self = this->shared_from_this()](ErrorCode error, size_t) {
                        if (!error && self->response_.keep_alive()) self->read();
                      });
  }

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
};

}  // namespace

void Dashboard::Implementation::accept() {
  acceptor.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (!error && num_connections < kMostConnections)
      std::make_shared<Connection<Implementation>>(*this, std::move(socket))->read();
    if (!error) {
      accept();
    } else if (error != asio::error::operation_aborted) {  // no descriptors are left, or the like
      pause.expires_after(std::chrono::seconds(1));
      pause.async_wait([this](ErrorCode cancelled) {
        if (!cancelled) accept();
      });
    }
  });
}

http::response<http::string_body> Dashboard::Implementation::answer(
    const http::request<http::empty_body>& request) const {
  constexpr std::string_view kMetrics = "/metrics.jsonl/";
  const std::string target(request.target().data(), request.target().size());
  if (request.method() != http::verb::get)
    return response_of(http::status::method_not_allowed, "text/plain", "only GET\n");
  if (target == "/")
    return response_of(http::status::ok, "text/html; charset=utf-8",
                       report::live_page(folder.lexically_normal().string()));
  if (target.starts_with(kMetrics)) {
    int64_t offset = 0;
    const char* const end = target.data() + target.size();
    const auto [stop, error] = std::from_chars(target.data() + kMetrics.size(), end, offset);
    if (error == std::errc() && stop == end && offset >= 0)
      return response_of(http::status::ok, "application/x-ndjson",
                         lines_from(folder / "metrics.jsonl", offset));
  }
  return response_of(http::status::not_found, "text/plain",
                     "not here: / is the page, /metrics.jsonl/OFFSET its data\n");
}

Dashboard::Dashboard(const std::string& address, std::filesystem::path run_folder)
    : implementation_(
          std::make_unique<Implementation>(parse_address(address), std::move(run_folder))) {}

Dashboard::~Dashboard() = default;

std::string Dashboard::url() const {
  return "http://" + implementation_->address.host + ":" +
         std::to_string(implementation_->acceptor.local_endpoint().port()) + "/";
}

}  // namespace deltatrain::cli
