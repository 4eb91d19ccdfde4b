// Sizes in bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace deltatrain {

std::string size_text(int64_t bytes);  // "3.50 MiB" below 1 GiB, "1.25 GiB" from there

}  // namespace deltatrain
