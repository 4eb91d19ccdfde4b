// ZIP archives whose members are stored, not compressed: the container of PyTorch's files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace deltatrain::formats {

// Maps the file and reads the central directory, Zip64 included. FormatError, naming file and
// member, for a compressed or encrypted member, a name given twice or one that leads out of the
// archive, and anything that lies outside the file.
class ZipArchive {
 public:
  explicit ZipArchive(const std::filesystem::path& path);

  struct Member {
    std::span<const std::byte> bytes;
    uint32_t crc32 = 0;  // 0: the writer left it out
  };

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, Member>& members() const { return members_; }
  const Member* find(const std::string& name) const;  // null when absent

  // All of the file, members and what lies between.
  std::span<const std::byte> file_bytes() const { return file_.bytes(); }

  // FormatError when the member's CRC-32 is not the recorded one.
  void check_crc32(const std::string& name) const;
  // The same where the member's CRC-32 is known to be `crc`.
  void require_crc32(const std::string& name, uint32_t crc) const;

 private:
  MappedFile file_;
  std::map<std::string, Member> members_;
};

// Whether the file begins as a ZIP archive does.
bool looks_like_zip(const std::filesystem::path& path);

// CRC-32 of what `crc` is of, 0 of nothing, and of `data` behind it.
uint32_t update_crc32(uint32_t crc, std::span<const std::byte> data);

// Writes one member after the other, the data of each at a multiple of 64 bytes as PyTorch does, so
// that a reader may map them. Sizes are known before; checksums are filled in afterwards.
class ZipWriter {
 public:
  explicit ZipWriter(std::filesystem::path path);

  void begin_member(const std::string& name, int64_t bytes);
  void write(const void* data, int64_t bytes);  // the next bytes of the member
  void add_member(const std::string& name, std::string_view content);

  // Writes the central directory; the file appears under its name, whole and flushed.
  void commit();

 private:
  struct Entry {
    std::string name;
    int64_t header_offset = 0;
    int64_t bytes = 0;
    int64_t written = 0;
    uint32_t crc32 = 0;
  };

  void end_member();

  std::filesystem::path path_;
  AtomicFileWriter file_;
  std::vector<Entry> entries_;
};

}  // namespace deltatrain::formats
