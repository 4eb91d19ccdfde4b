#include "dist/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace deltatrain::dist {

namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string place_text(const std::string& address, int port) {
  return address + ":" + std::to_string(port);
}

Addresses resolve(const std::string& address, int port, std::string* problem) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status != 0) *problem = ::gai_strerror(status);
  return Addresses(list);
}

void make_ready(int descriptor) {
  const int one = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

int milliseconds_until(std::optional<Clock::time_point> deadline) {
  if (!deadline) return -1;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

std::string address_text(const sockaddr_storage& storage, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  const int status = ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host.data(),
                                   host.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? host.data() : "";
}

// One try; the reason of a failure is left in `problem`.
Socket try_connect(const addrinfo& candidate, Clock::time_point deadline, std::string* problem) {
  Socket socket(::socket(candidate.ai_family, candidate.ai_socktype, candidate.ai_protocol));
  if (!socket.is_open()) {
    *problem = std::strerror(errno);
    return {};
  }
  make_ready(socket.descriptor());
  if (::connect(socket.descriptor(), candidate.ai_addr, candidate.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) {
    *problem = std::strerror(errno);
    return {};
  }
  pollfd waiting{socket.descriptor(), POLLOUT, 0};
  if (::poll(&waiting, 1, milliseconds_until(deadline)) <= 0) {
    *problem = "no answer";
    return {};
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return socket;
  *problem = std::strerror(error);
  return {};
}

// Waits until one of two sockets is ready for what is asked of it.
Transfer wait_for(pollfd* sockets, size_t num, int alarm,
                  std::optional<Clock::time_point> deadline) {
  sockets[num] = pollfd{alarm, POLLIN, 0};  // a negative descriptor is passed over
  while (true) {
    const int ready = ::poll(sockets, num + 1, milliseconds_until(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return Transfer::kClosed;
    if (ready == 0) return Transfer::kTimeout;
    return sockets[num].revents != 0 ? Transfer::kCancelled : Transfer::kDone;
  }
}

// How many bytes went through; 0: not ready; -1: closed or broken.
int64_t send_some(int descriptor, const char* data, size_t bytes) {
  const ssize_t sent = ::send(descriptor, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return sent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

int64_t receive_some(int descriptor, char* data, size_t bytes) {
  const ssize_t received = ::recv(descriptor, data, bytes, MSG_DONTWAIT);
  if (received > 0) return received;
  if (received == 0) return -1;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

}  // namespace

Socket::~Socket() { close(); }

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void Socket::shut_down() {
  if (descriptor_ >= 0) ::shutdown(descriptor_, SHUT_RDWR);
}

Alarm::Alarm() : socket_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!socket_.is_open())
    throw DeviceError(error_text("ranks", "eventfd", "a descriptor", std::strerror(errno)));
}

void Alarm::raise() noexcept {
  const uint64_t one = 1;
  // Fails only where the alarm has been raised 2^64 - 2 times.
  if (::write(socket_.descriptor(), &one, sizeof one) < 0) return;
}

Socket listen_at(const std::string& address, int port) {
  std::string problem;
  const Addresses addresses = resolve(address, port, &problem);
  for (const addrinfo* candidate = addresses.get(); candidate != nullptr;
       candidate = candidate->ai_next) {
    Socket socket(::socket(candidate->ai_family, candidate->ai_socktype, candidate->ai_protocol));
    if (!socket.is_open()) {
      problem = std::strerror(errno);
      continue;
    }
    // A port is free again as soon as the job before has ended.
    const int one = 1;
    ::setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    make_ready(socket.descriptor());
    if (::bind(socket.descriptor(), candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        ::listen(socket.descriptor(), 1024) == 0)
      return socket;
    problem =
        errno == EADDRNOTAVAIL ? "this host does not have that address" : std::strerror(errno);
  }
  throw DeviceError(
      error_text("rank 0", "listening at " + place_text(address, port), "a free port", problem));
}

int port_of(const Socket& listening) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  ::getsockname(listening.descriptor(), reinterpret_cast<sockaddr*>(&storage), &size);
  const uint16_t port = storage.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                            : reinterpret_cast<const sockaddr_in&>(storage).sin_port;
  return ntohs(port);
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    return "";
  return address_text(storage, size);
}

std::string own_address(const Socket& socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    return "";
  return address_text(storage, size);
}

std::optional<Socket> accept_from(const Socket& listening) {
  const int descriptor = ::accept(listening.descriptor(), nullptr, nullptr);
  if (descriptor < 0) return std::nullopt;
  make_ready(descriptor);
  return Socket(descriptor);
}

Socket connect_to(const std::string& address, int port, Clock::time_point deadline) {
  std::string problem = "no answer";
  while (true) {
    const Addresses addresses = resolve(address, port, &problem);
    for (const addrinfo* candidate = addresses.get(); candidate != nullptr;
         candidate = candidate->ai_next) {
      // A host that drops packets must not use up the time of the next address.
      const auto until = std::min(deadline, Clock::now() + std::chrono::seconds(5));
      Socket socket = try_connect(*candidate, until, &problem);
      if (socket.is_open()) return socket;
    }
    if (Clock::now() + std::chrono::milliseconds(100) >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw CollectiveError(error_text("ranks", "connecting to " + place_text(address, port),
                                   "an answer of its rank", problem));
}

Transfer send_all(const Socket& socket, const void* data, size_t bytes, int alarm,
                  std::optional<Clock::time_point> deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const int64_t sent = send_some(socket.descriptor(), at, bytes);
    if (sent < 0) return Transfer::kClosed;
    at += sent;
    bytes -= static_cast<size_t>(sent);
    if (bytes == 0) break;
    pollfd waiting[2] = {{socket.descriptor(), POLLOUT, 0}, {}};
    if (const Transfer ready = wait_for(waiting, 1, alarm, deadline); ready != Transfer::kDone)
      return ready;
  }
  return Transfer::kDone;
}

Transfer receive_all(const Socket& socket, void* data, size_t bytes, int alarm,
                     std::optional<Clock::time_point> deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const int64_t received = receive_some(socket.descriptor(), at, bytes);
    if (received < 0) return Transfer::kClosed;
    at += received;
    bytes -= static_cast<size_t>(received);
    if (bytes == 0) break;
    pollfd waiting[2] = {{socket.descriptor(), POLLIN, 0}, {}};
    if (const Transfer ready = wait_for(waiting, 1, alarm, deadline); ready != Transfer::kDone)
      return ready;
  }
  return Transfer::kDone;
}

Exchange exchange(const Socket& to, const void* send, size_t send_bytes, const Socket& from,
                  void* receive, size_t receive_bytes, int alarm) {
  const char* out = static_cast<const char*>(send);
  char* in = static_cast<char*>(receive);
  while (send_bytes > 0 || receive_bytes > 0) {
    if (send_bytes > 0) {
      const int64_t sent = send_some(to.descriptor(), out, send_bytes);
      if (sent < 0) return {Transfer::kClosed, false};
      out += sent;
      send_bytes -= static_cast<size_t>(sent);
    }
    if (receive_bytes > 0) {
      const int64_t received = receive_some(from.descriptor(), in, receive_bytes);
      if (received < 0) return {Transfer::kClosed, true};
      in += received;
      receive_bytes -= static_cast<size_t>(received);
      if (received > 0) continue;  // more may be there already
    }
    if (send_bytes == 0 && receive_bytes == 0) break;
    pollfd waiting[3] = {{send_bytes > 0 ? to.descriptor() : -1, POLLOUT, 0},
                         {receive_bytes > 0 ? from.descriptor() : -1, POLLIN, 0},
                         {}};
    if (const Transfer ready = wait_for(waiting, 2, alarm, std::nullopt); ready != Transfer::kDone)
      return {ready, receive_bytes > 0};
  }
  return {};
}

}  // namespace deltatrain::dist
