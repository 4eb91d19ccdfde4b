// Guards for the program's own invariants. User input never reaches them: it is checked with the
// errors of base/error.h. Both print the values they compared.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace deltatrain {

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);
}  // namespace internal

// DELTATRAIN_CHECK(condition, detail): throws InternalError in every build.
#define DELTATRAIN_CHECK(condition, detail)                                         \
  do {                                                                              \
    if (!(condition))                                                               \
      ::deltatrain::internal::check_failed(__FILE__, __LINE__, #condition, detail); \
  } while (false)

#ifdef NDEBUG
#define DELTATRAIN_DCHECK(condition, detail) \
  do {                                       \
  } while (false)
#else
#define DELTATRAIN_DCHECK(condition, detail) DELTATRAIN_CHECK(condition, detail)
#endif

// Integer conversion that throws InternalError where the value does not survive.
template <class To, class From>
To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  if (!std::in_range<To>(value)) {
    internal::check_failed(__FILE__, __LINE__, "narrow",
                           "value " + std::to_string(value) + " does not fit");
  }
  return static_cast<To>(value);
}

// a / b where b must divide a.
inline int64_t divide_exactly(int64_t a, int64_t b) {
  DELTATRAIN_CHECK(b > 0 && a % b == 0, std::to_string(a) + " / " + std::to_string(b));
  return a / b;
}

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

}  // namespace deltatrain
