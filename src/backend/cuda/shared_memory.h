// What shared memory the device gives a block, for what has to know before a launch.
#pragma once

#include <cstdint>

namespace deltatrain::backend::cuda {

// Bytes that a block of the current device can have; more than any block takes where there is no
// device to ask.
int64_t shared_bytes_limit();

}  // namespace deltatrain::backend::cuda
