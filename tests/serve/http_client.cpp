#include "serve/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace deltatrain::test {

HttpClient::HttpClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket_);
    throw std::runtime_error("nobody listens on port " + std::to_string(port));
  }
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool HttpClient::send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

std::string HttpClient::receive(size_t count) {
  std::string bytes = buffer_.substr(0, count);
  buffer_.erase(0, bytes.size());
  if (!bytes.empty() || count == 0) return bytes;
  pollfd waiting{socket_, POLLIN, 0};
  if (::poll(&waiting, 1, 60000) <= 0) return "";
  bytes.resize(count);
  const ssize_t got = ::recv(socket_, bytes.data(), count, 0);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

std::string HttpClient::line() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    std::string kept;
    kept.swap(buffer_);
    const std::string more = receive(65536);
    buffer_ = kept + more;
    if (more.empty()) {
      buffer_.clear();
      return "";
    }
  }
  std::string result = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return result;
}

ClientResponse HttpClient::read_response() {
  ClientResponse response;
  const std::string status = line();
  if (!status.starts_with("HTTP/1.1 ")) return response;
  response.status = std::stoi(status.substr(9));
  for (std::string header; !(header = line()).empty();) {
    const size_t colon = header.find(": ");
    std::string name = header.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = header.substr(colon + 2);
  }
  if (response.status == 100) return read_response();
  const auto read = [&](size_t count) {
    std::string bytes;
    while (bytes.size() < count) {
      const std::string more = receive(count - bytes.size());
      if (more.empty()) break;
      bytes += more;
    }
    return bytes;
  };
  if (response.headers.contains("content-length")) {
    response.body = read(std::stoul(response.headers["content-length"]));
  } else if (response.headers.contains("transfer-encoding")) {
    while (true) {
      const std::string size = line();
      const size_t count = size.empty() ? 0 : std::stoul(size, nullptr, 16);
      if (count == 0) break;
      response.chunks.push_back(read(count));
      response.body += response.chunks.back();
      line();
    }
    line();
  } else {
    for (std::string more; !(more = receive(65536)).empty();) response.body += more;
  }
  return response;
}

ClientResponse HttpClient::request(const std::string& method, const std::string& path,
                                   const std::string& body, const std::string& headers) {
  std::string bytes = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
  if (!body.empty() || method == "POST")
    bytes +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  send(bytes + "\r\n" + body);
  return read_response();
}

ClientResponse http(uint16_t port, const std::string& method, const std::string& path,
                    const std::string& body, const std::string& headers) {
  return HttpClient(port).request(method, path, body, headers);
}

std::vector<std::string> events_of(const ClientResponse& response) {
  std::vector<std::string> events;
  size_t begin = 0;
  for (size_t end; (end = response.body.find("\n\n", begin)) != std::string::npos;
       begin = end + 2) {
    if (response.body.compare(begin, 6, "data: ") == 0)
      events.push_back(response.body.substr(begin + 6, end - begin - 6));
  }
  return events;
}

}  // namespace deltatrain::test
