// A stretch of flat buffers that one rank owns, and where its state lies.
#pragma once

#include <cstdint>

namespace deltatrain {

struct Segment {
  int64_t begin = 0;        // elements from the start of the flat buffers
  int64_t count = 0;        // elements
  int64_t state_begin = 0;  // elements from the start of buffers that hold owned segments alone
};

}  // namespace deltatrain
