// TCP sockets that never block without a limit. Internal to the folder.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace deltatrain::dist {

using Clock = std::chrono::steady_clock;

inline Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// A file descriptor that is closed with the object.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  void close();
  void shut_down();  // a thread that waits for it sees it closed

 private:
  int descriptor_ = -1;
};

// An event that poll() sees: raised once, for good.
class Alarm {
 public:
  Alarm();
  void raise() noexcept;
  int descriptor() const { return socket_.descriptor(); }

 private:
  Socket socket_;
};

// Listens at the address and port (0: any), non-blocking. DeviceError (exit code 5) where the
// address is not one of this host or the port is taken.
Socket listen_at(const std::string& address, int port);
int port_of(const Socket& listening);
// The numeric address that a connection comes from (peer) or goes out from (own).
std::string peer_address(const Socket& socket);
std::string own_address(const Socket& socket);

// A connection that waits to be accepted, non-blocking; absent where none does.
std::optional<Socket> accept_from(const Socket& listening);

// Connects, trying again until the deadline. CollectiveError says what the last try met. Non-blocking,
// without Nagle's delay.
Socket connect_to(const std::string& address, int port, Clock::time_point deadline);

enum class Transfer : uint8_t { kDone, kClosed, kCancelled, kTimeout };

// All bytes, or why not. kClosed: the peer closed or the connection broke. kCancelled: the alarm
// (descriptor, -1: none) was raised.
Transfer send_all(const Socket& socket, const void* data, size_t bytes, int alarm,
                  std::optional<Clock::time_point> deadline = std::nullopt);
Transfer receive_all(const Socket& socket, void* data, size_t bytes, int alarm,
                     std::optional<Clock::time_point> deadline = std::nullopt);

// Sends to one peer while receiving from another, so that a ring of peers never waits in a circle.
// Which of the two failed is in `receiving`.
struct Exchange {
  Transfer result = Transfer::kDone;
  bool receiving = false;
};
Exchange exchange(const Socket& to, const void* send, size_t send_bytes, const Socket& from,
                  void* receive, size_t receive_bytes, int alarm);

}  // namespace deltatrain::dist
