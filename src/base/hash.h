// Digests: XXH3-64 for checksums of tensors (fast), SHA-256 for files that people compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace deltatrain {

uint64_t xxh3_64(const void* data, size_t bytes);

// The same digest of bytes that arrive in pieces.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;

  void update(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hex64(uint64_t value);  // 16 lower-case digits

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(const void* data, size_t bytes);
  std::string hex();  // ends the digest; 64 lower-case digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain
