#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "formats/indexed_dataset.h"

namespace deltatrain::formats {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kPieceBytes = size_t{1} << 18;
constexpr size_t kMappedBytes = size_t{1} << 26;  // of a map in memory at a time

// A file that will appear under its name on commit, written through a buffer and digested on the
// way.
class DigestedFile {
 public:
  explicit DigestedFile(const std::filesystem::path& path) : path_(path), file_(path) {
    buffer_.reserve(kBufferBytes);
  }

  void write(const void* data, size_t bytes) {
    if (buffer_.size() + bytes > kBufferBytes) flush();
    const auto* from = static_cast<const std::byte*>(data);
    if (bytes < kBufferBytes) {
      buffer_.insert(buffer_.end(), from, from + bytes);
      return;
    }
    // What has been digested is still in the near caches when it is written.
    for (size_t done = 0; done < bytes; done += kPieceBytes) {
      const size_t piece = std::min(kPieceBytes, bytes - done);
      digest_.update(from + done, piece);
      file_.write(from + done, piece);
    }
  }

  template <class T>
  void put(T value) {
    write(&value, sizeof value);
  }

  // Returns the digest and the size.
  std::pair<std::string, int64_t> commit() {
    flush();
    file_.commit();
    return {digest_.hex(), file_.position()};
  }

  // Commits another file under this one's name; nothing has been written.
  std::pair<std::string, int64_t> commit_link(const std::filesystem::path& other) {
    const MappedFile map(other);
    const std::span<const std::byte> bytes = map.bytes();
    const auto for_each_part = [&](auto visit) {
      for (size_t done = 0; done < bytes.size(); done += kMappedBytes) {
        const auto part = bytes.subspan(done, std::min(kMappedBytes, bytes.size() - done));
        visit(part);
        drop_pages(part);
      }
    };
    for_each_part(
        [&](std::span<const std::byte> part) { digest_.update(part.data(), part.size()); });
    if (!link_file_atomically(other, path_)) {
      for_each_part(
          [&](std::span<const std::byte> part) { file_.write(part.data(), part.size()); });
      file_.commit();
    }
    return {digest_.hex(), static_cast<int64_t>(bytes.size())};
  }

 private:
  void flush() {
    digest_.update(buffer_.data(), buffer_.size());
    file_.write(buffer_.data(), buffer_.size());
    buffer_.clear();
  }

  std::filesystem::path path_;
  AtomicFileWriter file_;
  Sha256 digest_;
  std::vector<std::byte> buffer_;
};

// Numbers kept on disk until they are read back once in order: an unnamed file beside the outputs.
template <class T>
class Spool {
 public:
  explicit Spool(const std::string& path_template) : name_(path_template) {
    fd_ = ::mkstemp(name_.data());
    if (fd_ < 0) fail("cannot be created");
    ::unlink(name_.c_str());
  }
  ~Spool() { ::close(fd_); }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  void push(T value) {
    buffer_.push_back(value);
    ++size_;
    if (buffer_.size() * sizeof(T) >= kBufferBytes) flush();
  }
  int64_t size() const { return size_; }

  template <class Visit>
  void for_each(Visit visit) {
    flush();
    std::vector<T> block(kBufferBytes / sizeof(T));
    int64_t done = 0;
    while (done < size_) {
      const int64_t count = std::min<int64_t>(size_ - done, static_cast<int64_t>(block.size()));
      transfer(::pread, block.data(), count, done);
      for (int64_t i = 0; i < count; ++i) visit(block[static_cast<size_t>(i)]);
      done += count;
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw FileError(name_ + ": " + what + ": " + std::strerror(errno), ExitCode::kEnvironment);
  }

  template <class Call, class Pointer>
  void transfer(Call call, Pointer* data, int64_t count, int64_t first) {
    auto* bytes = reinterpret_cast<char*>(data);
    size_t left = static_cast<size_t>(count) * sizeof(T);
    auto offset = static_cast<off_t>(first * static_cast<int64_t>(sizeof(T)));
    while (left > 0) {
      const ssize_t moved = call(fd_, bytes, left, offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) fail("cannot be written or read back");
      bytes += moved;
      left -= static_cast<size_t>(moved);
      offset += moved;
    }
  }

  void flush() {
    transfer(::pwrite, buffer_.data(), static_cast<int64_t>(buffer_.size()),
             size_ - static_cast<int64_t>(buffer_.size()));
    buffer_.clear();
  }

  std::string name_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::vector<T> buffer_;
};

}  // namespace

struct IndexedDatasetWriter::State {
  State(const std::string& name, TokenType token_type, DocumentIndices document_indices)
      : prefix(name),
        type(token_type),
        indices(document_indices),
        bin(bin_path(name)),
        lengths(name + ".idx.lengths-XXXXXX"),
        documents(name + ".idx.documents-XXXXXX") {}

  void count(int64_t tokens) {
    if (tokens > std::numeric_limits<int32_t>::max()) {
      throw FormatError(error_text(prefix, "length of sequence " + std::to_string(lengths.size()),
                                   "at most 2147483647 tokens", std::to_string(tokens)));
    }
    lengths.push(static_cast<int32_t>(tokens));
    num_tokens += tokens;
  }

  std::string prefix;
  TokenType type;
  DocumentIndices indices;
  DigestedFile bin;
  std::filesystem::path taken;  // the file of which the .bin will be a second name; empty: none
  Spool<int32_t> lengths;
  Spool<int64_t> documents;
  int64_t num_tokens = 0;
  std::vector<std::byte> narrowed;
};

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type,
                                           DocumentIndices indices)
    : state_(std::make_unique<State>(prefix, type, indices)) {}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

void pack_tokens(TokenType type, std::span<const int32_t> tokens, std::vector<std::byte>& out) {
  const size_t before = out.size();
  out.resize(before + tokens.size() * static_cast<size_t>(token_bytes(type)));
  std::byte* to = out.data() + before;
  const auto convert = [&](auto limits) {
    using T = decltype(limits);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!std::in_range<T>(tokens[i])) {
        throw FormatError(error_text(token_type_name(type) + " token file",
                                     "id at position " + std::to_string(i),
                                     "an id up to " + std::to_string(std::numeric_limits<T>::max()),
                                     std::to_string(tokens[i])));
      }
      const T value = static_cast<T>(tokens[i]);
      std::memcpy(to + i * sizeof(T), &value, sizeof(T));
    }
  };
  switch (type) {
    case TokenType::kU8:
      convert(uint8_t{});
      break;
    case TokenType::kI8:
      convert(int8_t{});
      break;
    case TokenType::kI16:
      convert(int16_t{});
      break;
    case TokenType::kI32:
      convert(int32_t{});
      break;
    case TokenType::kI64:
      convert(int64_t{});
      break;
    case TokenType::kU16:
      convert(uint16_t{});
      break;
  }
}

void IndexedDatasetWriter::add_sequence(std::span<const int32_t> tokens) {
  State& state = *state_;
  DELTATRAIN_CHECK(state.taken.empty(), state.prefix + " has its tokens");
  state.narrowed.clear();
  pack_tokens(state.type, tokens, state.narrowed);
  state.count(static_cast<int64_t>(tokens.size()));
  state.bin.write(state.narrowed.data(), state.narrowed.size());
}

void IndexedDatasetWriter::end_document() { state_->documents.push(state_->lengths.size()); }

void IndexedDatasetWriter::add_raw_documents(std::span<const std::byte> bytes,
                                             std::span<const int32_t> lengths) {
  State& state = *state_;
  const int64_t before = state.num_tokens;
  for (const int32_t length : lengths) {
    if (length > 0) state.count(length);
    end_document();
  }
  const int64_t item = token_bytes(state.type);
  DELTATRAIN_CHECK((state.num_tokens - before) * item == static_cast<int64_t>(bytes.size()),
                   std::to_string(state.num_tokens - before) + " tokens in " +
                       std::to_string(bytes.size()) + " bytes");
  if (state.taken.empty()) state.bin.write(bytes.data(), bytes.size());
}

void IndexedDatasetWriter::take_tokens_of(const std::filesystem::path& file) {
  DELTATRAIN_CHECK(num_documents() == 0 && num_sequences() == 0, state_->prefix + " has documents");
  state_->taken = file;
}

int64_t IndexedDatasetWriter::num_sequences() const { return state_->lengths.size(); }
int64_t IndexedDatasetWriter::num_documents() const { return state_->documents.size(); }
int64_t IndexedDatasetWriter::num_tokens() const { return state_->num_tokens; }

IndexedDatasetWriter::Digests IndexedDatasetWriter::commit() {
  State& state = *state_;
  Digests digests;
  std::tie(digests.bin_sha256, digests.bin_bytes) =
      state.taken.empty() ? state.bin.commit() : state.bin.commit_link(state.taken);
  DELTATRAIN_CHECK(digests.bin_bytes == state.num_tokens * token_bytes(state.type),
                   state.prefix + ": " + std::to_string(digests.bin_bytes) + " bytes");

  DigestedFile idx(idx_path(state.prefix));
  const char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
  idx.write(magic, sizeof magic);
  idx.put(uint64_t{1});
  idx.put(static_cast<uint8_t>(state.type));
  idx.put(static_cast<uint64_t>(state.lengths.size()));
  const bool leading_zero = state.indices == DocumentIndices::kMegatron;
  idx.put(static_cast<uint64_t>(state.documents.size() + (leading_zero ? 1 : 0)));
  state.lengths.for_each([&](int32_t length) { idx.put(length); });
  int64_t pointer = 0;
  const int64_t item = token_bytes(state.type);
  state.lengths.for_each([&](int32_t length) {
    idx.put(pointer);
    pointer += length * item;
  });
  if (leading_zero) idx.put(int64_t{0});
  state.documents.for_each([&](int64_t end) { idx.put(end); });
  std::tie(digests.idx_sha256, digests.idx_bytes) = idx.commit();
  return digests;
}

}  // namespace deltatrain::formats
