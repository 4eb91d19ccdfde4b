// The bytes of a file from its start or from an offset,
// decompressed where its name ends in .gz or .zst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace deltatrain::prepare {

enum class Compression : uint8_t { kNone, kGzip, kZstd };

// By the last extension: .gz, .zst; anything else is not compressed.
Compression compression_of(const std::filesystem::path& path);

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Reads up to `bytes` bytes; fewer only at the end, where it returns 0. FileError when the file
  // cannot be read, FormatError when a compressed stream is broken or cut off.
  virtual size_t read(char* to, size_t bytes) = 0;

  // Bytes of the file itself that have been read, for progress.
  virtual int64_t file_position() const = 0;
};

// `offset` is in the file's own bytes and must be 0 where it is compressed.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path,
                                             Compression compression, int64_t offset = 0);

}  // namespace deltatrain::prepare
