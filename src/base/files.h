// Files: whole reads, memory maps, and writes that are either complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace deltatrain {

// FileError (bad input) when it cannot be opened or read, or is larger than max_bytes.
std::string read_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 40);

// A read-only map of a whole file. Throws FileError
// (bad input). An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Tells the system that a part of a map will not be read again soon, so that it stops counting as memory of
// this process. Reading it again is slower, never wrong.
void drop_pages(std::span<const std::byte> part);

// Writes to "PATH.tmp-PID", and on commit() flushes it to the disk and renames it to PATH, so that
// PATH is never half written. Without commit() the temporary file is removed. Throws FileError with
// exit code 5 (full disk, no permission).
class AtomicFileWriter {
 public:
  explicit AtomicFileWriter(std::filesystem::path path);
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void write_at(int64_t offset, const void* data,
                size_t bytes);  // does not move the end of write()
  int64_t position() const { return position_; }
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  int64_t position_ = 0;
};

// Gives a file a second name (a hard link), which replaces a file that has it. False, with nothing changed, where the file
// system cannot.
bool link_file_atomically(const std::filesystem::path& file, const std::filesystem::path& name);

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Flushes a directory's entries to the disk, so that a rename in it survives a power cut.
void sync_directory(const std::filesystem::path& directory);

}  // namespace deltatrain
