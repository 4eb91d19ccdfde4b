// The exceptions of the library. Every message names where, what, expected and got, in one line.
//
// The command line program turns an exception into that line on stderr and the exit code below;
// library code never prints and never exits.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace deltatrain {

// Exit codes of the program: the contract with scripts that call it.
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,
  kBadInput = 2,
  kNonFinite = 3,
  kCheckFailed = 4,
  kEnvironment = 5,
  kPeerLost = 6,
};

class Error : public std::runtime_error {
 public:
  Error(std::string message, ExitCode code) : std::runtime_error(std::move(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A recipe, option or argument that cannot be used.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::string message) : Error(std::move(message), ExitCode::kBadInput) {}
};

// A file whose bytes are not what its format demands.
class FormatError : public Error {
 public:
  explicit FormatError(std::string message) : Error(std::move(message), ExitCode::kBadInput) {}
};

// Tensors that do not fit each other.
class ShapeError : public Error {
 public:
  explicit ShapeError(std::string message) : Error(std::move(message), ExitCode::kBadInput) {}
};

// Something valid that this build or backend does not do.
class UnsupportedError : public Error {
 public:
  explicit UnsupportedError(std::string message) : Error(std::move(message), ExitCode::kBadInput) {}
};

// Device, driver, memory, disk or port: the surroundings, not the input.
class DeviceError : public Error {
 public:
  explicit DeviceError(std::string message) : Error(std::move(message), ExitCode::kEnvironment) {}
};

// A file that cannot be opened, read, written or renamed; the system's own text is kept.
class FileError : public Error {
 public:
  FileError(std::string message, ExitCode code) : Error(std::move(message), code) {}
};

// A peer rank was lost or a collective failed.
class CollectiveError : public Error {
 public:
  explicit CollectiveError(std::string message) : Error(std::move(message), ExitCode::kPeerLost) {}
};

// A loss, gradient or parameter that is not finite.
class NumericError : public Error {
 public:
  explicit NumericError(std::string message) : Error(std::move(message), ExitCode::kNonFinite) {}
};

// A comparison or verification that did not hold.
class CheckFailedError : public Error {
 public:
  explicit CheckFailedError(std::string message)
      : Error(std::move(message), ExitCode::kCheckFailed) {}
};

// A broken invariant of this program: a bug.
class InternalError : public Error {
 public:
  explicit InternalError(std::string message) : Error(std::move(message), ExitCode::kInternal) {}
};

// "where: what: expected X, got Y" with empty parts left out.
std::string error_text(std::string_view where, std::string_view what, std::string_view expected,
                       std::string_view got);

// The name in `candidates` nearest to `name` by edit
// distance, or "" if none is near enough to be meant.
template <class Range>
std::string nearest_name(std::string_view name, const Range& candidates);

// Number of single-character insertions, deletions, substitutions and swaps between `a` and `b`.
int edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string nearest_name(std::string_view name, const Range& candidates) {
  std::string best;
  int best_distance = 1 + static_cast<int>(name.size()) / 3;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    if (distance <= best_distance && (best.empty() || distance < best_distance)) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

}  // namespace deltatrain
