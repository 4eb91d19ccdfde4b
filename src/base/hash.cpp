#include "base/hash.h"

#include <openssl/evp.h>

#include <xxhash.h>

#include "base/check.h"

namespace deltatrain {

uint64_t xxh3_64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

struct Xxh3::State {
  XXH3_state_t* state = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(state); }
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  DELTATRAIN_CHECK(XXH3_64bits_reset(state_->state) == XXH_OK, "XXH3 is not available");
}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::update(const void* data, size_t bytes) {
  DELTATRAIN_CHECK(XXH3_64bits_update(state_->state, data, bytes) == XXH_OK, "XXH3 update failed");
}

uint64_t Xxh3::value() const { return XXH3_64bits_digest(state_->state); }

std::string hex64(uint64_t value) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < 16; ++i) text[15 - i] = kDigits[(value >> (4 * i)) & 15U];
  return text;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  DELTATRAIN_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
                   "SHA-256 is not available");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, size_t bytes) {
  DELTATRAIN_CHECK(EVP_DigestUpdate(state_->context, data, bytes) == 1, "SHA-256 update failed");
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  DELTATRAIN_CHECK(EVP_DigestFinal_ex(state_->context, digest, &size) == 1, "SHA-256 end failed");
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15U];
  }
  return text;
}

}  // namespace deltatrain
