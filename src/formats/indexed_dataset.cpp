#include "formats/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace deltatrain::formats {

namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kHeaderBytes = 34;

// The arrays of an .idx begin at byte 34, so nothing in it is aligned.
template <class T>
T load_value(const std::byte* from, int64_t index = 0) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

[[noreturn]] void refuse(const std::filesystem::path& file, std::string_view what,
                         const std::string& expected, const std::string& got) {
  throw FormatError(error_text(file.string(), what, expected, got));
}

// Calls visit with a null pointer of the element type.
template <class Visit>
void with_type(TokenType type, Visit visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(static_cast<const uint8_t*>(nullptr));
    case TokenType::kI8:
      return visit(static_cast<const int8_t*>(nullptr));
    case TokenType::kI16:
      return visit(static_cast<const int16_t*>(nullptr));
    case TokenType::kI32:
      return visit(static_cast<const int32_t*>(nullptr));
    case TokenType::kI64:
      return visit(static_cast<const int64_t*>(nullptr));
    case TokenType::kU16:
      return visit(static_cast<const uint16_t*>(nullptr));
  }
}

}  // namespace

int64_t token_bytes(TokenType type) {
  int64_t bytes = 0;
  with_type(type, [&](auto pointer) { bytes = sizeof(*pointer); });
  return bytes;
}

std::string token_type_name(TokenType type) {
  std::string name;
  with_type(type, [&](auto pointer) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(pointer)>>;
    name = std::string(std::is_unsigned_v<T> ? "uint" : "int") + std::to_string(8 * sizeof(T));
  });
  return name;
}

TokenType token_type_for_vocabulary(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

std::filesystem::path bin_path(const std::string& prefix) { return prefix + ".bin"; }
std::filesystem::path idx_path(const std::string& prefix) { return prefix + ".idx"; }

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix), bin_(bin_path(prefix)), idx_(idx_path(prefix)) {
  check_index();
  check_sequences();
}

// Header, array sizes against the file's size, document indices.
void IndexedDataset::check_index() {
  const std::filesystem::path& path = idx_.path();
  const std::byte* data = idx_.bytes().data();
  const auto size = static_cast<int64_t>(idx_.bytes().size());
  if (size < kHeaderBytes)
    refuse(path, "size", "a header of 34 bytes", std::to_string(size) + " bytes");
  if (std::memcmp(data, kMagic, sizeof kMagic) != 0) {
    refuse(path, "magic", "MMIDIDX", "other bytes: not an index of a token data set");
  }
  const auto version = load_value<uint64_t>(data + 9);
  if (version != 1) refuse(path, "version", "1", std::to_string(version));
  const auto code = load_value<uint8_t>(data + 17);
  if (code != 1 && code != 2 && code != 3 && code != 4 && code != 5 && code != 8) {
    refuse(path, "dtype code", "1, 2, 3, 4, 5 or 8 (an integer type)", std::to_string(code));
  }
  type_ = static_cast<TokenType>(code);
  const auto sequences = load_value<uint64_t>(data + 18);
  const auto entries = load_value<uint64_t>(data + 26);
  // Bounded by the file first, so that no product below can overflow.
  const auto limit = static_cast<uint64_t>(size);
  if (sequences > limit / 12 || entries > limit / 8) {
    refuse(path, "counts", "arrays within the file's " + std::to_string(size) + " bytes",
           std::to_string(sequences) + " sequences and " + std::to_string(entries) +
               " document indices");
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  const auto num_entries = static_cast<int64_t>(entries);
  const int64_t expected = kHeaderBytes + 12 * num_sequences_ + 8 * num_entries;
  if (size == expected + num_sequences_ && num_sequences_ > 0) {
    throw UnsupportedError(path.string() +
                           ": a multimodal data set (it has a mode for each sequence)");
  }
  if (size != expected) {
    refuse(path, "size",
           std::to_string(expected) + " bytes for " + std::to_string(num_sequences_) +
               " sequences and " + std::to_string(num_entries) + " document indices",
           std::to_string(size) + " bytes");
  }
  lengths_ = data + kHeaderBytes;
  pointers_ = lengths_ + 4 * num_sequences_;
  documents_ = pointers_ + 8 * num_sequences_;
  if (num_entries == 0) refuse(path, "document indices", "at least one", "none");

  leading_zero_ = load_value<int64_t>(documents_) == 0;
  num_documents_ = leading_zero_ ? num_entries - 1 : num_entries;
  int64_t previous = 0;
  for (int64_t i = 0; i < num_entries; ++i) {
    const auto begin = load_value<int64_t>(documents_, i);
    if (begin < previous || begin > num_sequences_) {
      refuse(path, "document index " + std::to_string(i),
             "between " + std::to_string(previous) + " and " + std::to_string(num_sequences_),
             std::to_string(begin));
    }
    previous = begin;
  }
  if (previous != num_sequences_) {
    refuse(path, "last document index",
           std::to_string(num_sequences_) + " (the number of sequences)", std::to_string(previous));
  }
}

// Lengths and pointers against the size of the .bin.
void IndexedDataset::check_sequences() {
  const std::filesystem::path& path = idx_.path();
  const int64_t item = token_bytes(type_);
  const auto bin_size = static_cast<int64_t>(bin_.bytes().size());
  int64_t next = 0;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const int64_t count = load_value<int32_t>(lengths_, i);
    const auto pointer = load_value<int64_t>(pointers_, i);
    if (count < 0)
      refuse(path, "length of sequence " + std::to_string(i), ">= 0", std::to_string(count));
    if (pointer != next) {
      refuse(path, "pointer of sequence " + std::to_string(i),
             std::to_string(next) + " (the end of the one before)", std::to_string(pointer));
    }
    next += count * item;
    if (next > bin_size) {
      refuse(bin_.path(), "size",
             "at least " + std::to_string(next) + " bytes for sequences 0 to " + std::to_string(i) +
                 " of " + path.string(),
             std::to_string(bin_size) + " bytes");
    }
  }
  if (next != bin_size) {
    refuse(bin_.path(), "size",
           std::to_string(next) + " bytes, the end of the last sequence in " + path.string(),
           std::to_string(bin_size) + " bytes");
  }
  num_tokens_ = next / item;
}

int64_t IndexedDataset::length(int64_t sequence) const {
  return load_value<int32_t>(lengths_, sequence);
}

int64_t IndexedDataset::first_token(int64_t sequence) const {
  return load_value<int64_t>(pointers_, sequence) / token_bytes(type_);
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  if (leading_zero_) return load_value<int64_t>(documents_, document);
  return document == 0 ? 0 : load_value<int64_t>(documents_, document - 1);
}

int64_t IndexedDataset::sequence_of_token(int64_t token) const {
  int64_t low = 0;
  int64_t high = num_sequences_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (first_token(middle) <= token ? low : high) = middle;
  }
  return low;
}

void IndexedDataset::read(int64_t first, std::span<int32_t> out, int64_t vocab_size) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || first + count > num_tokens_) {
    throw InternalError(bin_.path().string() + ": tokens " + std::to_string(first) + " to " +
                        std::to_string(first + count) + " of " + std::to_string(num_tokens_));
  }
  const uint64_t bound = vocab_size > 0
                             ? static_cast<uint64_t>(vocab_size)
                             : static_cast<uint64_t>(std::numeric_limits<int32_t>::max()) + 1;
  with_type(type_, [&](auto pointer) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(pointer)>>;
    // Sequences are laid end to end without gaps, and a map begins at a page: elements are aligned.
    const T* from = reinterpret_cast<const T*>(bin_.bytes().data()) + first;
    using Wide = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;
    Wide largest = 0;  // a negative id becomes the largest of all
    for (int64_t i = 0; i < count; ++i) {
      const Wide id = static_cast<Wide>(static_cast<std::make_signed_t<Wide>>(from[i]));
      largest = std::max(largest, id);
      out[static_cast<size_t>(i)] = static_cast<int32_t>(id);
    }
    if (largest < bound) return;
    int64_t bad = 0;
    while (static_cast<Wide>(static_cast<std::make_signed_t<Wide>>(from[bad])) < bound) ++bad;
    const int64_t sequence = sequence_of_token(first + bad);
    refuse(
        bin_.path(),
        "token " + std::to_string(first + bad) + " (sequence " + std::to_string(sequence) +
            ", position " + std::to_string(first + bad - first_token(sequence)) + ")",
        "an id below " + std::to_string(bound) + (vocab_size > 0 ? ", the vocabulary's size" : ""),
        std::to_string(static_cast<int64_t>(from[bad])));
  });
}

}  // namespace deltatrain::formats
