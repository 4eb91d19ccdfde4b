// Connections to the next rank and from the one before. Internal to the folder.
#pragma once

#include "dist/socket.h"

namespace deltatrain::dist {

class Ring {
 public:
  Ring(Socket to_next, Socket from_before)
      : to_next_(std::move(to_next)), from_before_(std::move(from_before)) {}
  const Socket& to_next() const { return to_next_; }
  const Socket& from_before() const { return from_before_; }
  // A thread that waits for one of them sees it closed.
  void shut_down() {
    to_next_.shut_down();
    from_before_.shut_down();
  }

 private:
  Socket to_next_, from_before_;
};

}  // namespace deltatrain::dist
