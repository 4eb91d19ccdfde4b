// A client that does what its test says, byte by byte: also what no library would send.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltatrain::test {

struct ClientResponse {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> chunks;             // of a chunked answer
};

class HttpClient {
 public:
  // Connected to 127.0.0.1; throws std::runtime_error when nobody listens.
  explicit HttpClient(uint16_t port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False: the other side has closed.
  bool send(const std::string& bytes);
  // At most `count` bytes, as they come; "" at the end of the connection, or when nothing comes for
  // a minute.
  std::string receive(size_t count);
  ClientResponse read_response();
  ClientResponse request(const std::string& method, const std::string& path,
                         const std::string& body = "", const std::string& headers = "");
  void close();

 private:
  std::string line();

  int socket_ = -1;
  std::string buffer_;
};

// On a connection of its own.
ClientResponse http(uint16_t port, const std::string& method, const std::string& path,
                    const std::string& body = "", const std::string& headers = "");

// The "data: " lines of a stream of events.
std::vector<std::string> events_of(const ClientResponse& response);

}  // namespace deltatrain::test
