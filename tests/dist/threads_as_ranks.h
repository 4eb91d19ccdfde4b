// Ranks as threads of one process, for tests of what they say to each other.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dist/communicator.h"

namespace deltatrain::dist::test {

// A port that was free a moment ago.
inline int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  socklen_t size = sizeof address;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

inline RankPlace place_of(int rank, int size, int port) {
  RankPlace place;
  place.rank = rank;
  place.size = size;
  place.address = "127.0.0.1";
  place.port = port;
  return place;
}

// Fast, so that a test of a loss takes a second.
inline Timeouts short_timeouts() {
  return {.connect_seconds = 10,
          .heartbeat_seconds = 1,
          .collective_seconds = 1,
          .beat_seconds = 0.05,
          .grace_seconds = 5};
}

// Runs `body` on each rank, and returns the text of what each threw ("" for none).
inline std::vector<std::string> run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> thrown(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        thrown[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace deltatrain::dist::test
