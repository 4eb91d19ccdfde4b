#include "formats/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::formats {

namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kLocalBytes = 30;
constexpr size_t kCentralBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kLocatorBytes = 20;
constexpr size_t kAlignment = 64;
constexpr uint64_t kMaxMembers = 1 << 20;

// Little-endian numbers within a span; every access is checked by the caller's has().
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> data) : data_(data) {}
  size_t size() const { return data_.size(); }
  bool has(uint64_t at, uint64_t count) const {
    return at <= data_.size() && count <= data_.size() - at;
  }
  uint64_t number(size_t at, size_t width) const {
    uint64_t value = 0;
    for (size_t i = width; i > 0; --i)
      value = (value << 8) | std::to_integer<uint64_t>(data_[at + i - 1]);
    return value;
  }
  uint32_t u16(size_t at) const { return static_cast<uint32_t>(number(at, 2)); }
  uint32_t u32(size_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t u64(size_t at) const { return number(at, 8); }
  std::string text(size_t at, size_t count) const {
    return {reinterpret_cast<const char*>(data_.data()) + at, count};
  }
  std::span<const std::byte> part(size_t at, size_t count) const {
    return data_.subspan(at, count);
  }

 private:
  std::span<const std::byte> data_;
};

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t num_members = 0;
};

[[noreturn]] void fail(const std::string& where, const std::string& what,
                       const std::string& expected, const std::string& got) {
  throw FormatError(error_text(where, what, expected, got));
}

Directory find_directory(const Bytes& file, const std::string& where) {
  // The end record is the last thing in the file but for a comment of at most 64 KiB.
  std::optional<size_t> end;
  const size_t lowest = file.size() - std::min(file.size(), kEndBytes + 0xffff);
  for (size_t at = file.size() < kEndBytes ? 0 : file.size() - kEndBytes + 1; at > lowest; --at) {
    if (file.u32(at - 1) == kEndSignature && file.has(at - 1 + kEndBytes, file.u16(at - 1 + 20))) {
      end = at - 1;
      break;
    }
  }
  if (!end)
    fail(where, "", "a ZIP archive with its end record",
         "none; the file is cut off or another format");
  Directory directory{file.u32(*end + 16), file.u32(*end + 12), file.u16(*end + 10)};
  if (*end >= kLocatorBytes && file.u32(*end - kLocatorBytes) == kLocator64Signature) {
    const uint64_t at = file.u64(*end - kLocatorBytes + 8);
    if (!file.has(at, kEnd64Bytes) || file.u32(at) != kEnd64Signature) {
      fail(where, "Zip64 end record", "one at byte " + std::to_string(at), "none");
    }
    directory = {file.u64(at + 48), file.u64(at + 40), file.u64(at + 32)};
  }
  if (!file.has(directory.offset, directory.bytes)) {
    fail(where, "central directory", "a range within " + std::to_string(file.size()) + " bytes",
         std::to_string(directory.offset) + " + " + std::to_string(directory.bytes));
  }
  if (directory.num_members > std::min(kMaxMembers, directory.bytes / kCentralBytes)) {
    fail(where, "central directory",
         "at most " + std::to_string(directory.bytes / kCentralBytes) + " members",
         std::to_string(directory.num_members));
  }
  return directory;
}

bool leads_out(const std::string& name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return true;
  }
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return true;
    begin = end + 1;
  }
  return false;
}

std::string shown(const std::string& name) {
  std::string result;
  for (const char c : name.substr(0, 120)) result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return result;
}

void put_little(std::string& text, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) text += static_cast<char>(value >> (8 * i));
}

}  // namespace

ZipArchive::ZipArchive(const std::filesystem::path& path) : file_(path) {
  const Bytes file(file_.bytes());
  const std::string where = path.string();
  const Directory directory = find_directory(file, where);
  uint64_t at = directory.offset;
  const uint64_t directory_end = directory.offset + directory.bytes;
  for (uint64_t i = 0; i < directory.num_members; ++i) {
    if (at + kCentralBytes > directory_end || file.u32(at) != kCentralSignature) {
      fail(where, "central directory", std::to_string(directory.num_members) + " members",
           std::to_string(i) + " and something else");
    }
    const uint32_t flags = file.u16(at + 8);
    const uint32_t method = file.u16(at + 10);
    const uint32_t name_bytes = file.u16(at + 28);
    const uint32_t extra_bytes = file.u16(at + 30);
    const uint32_t comment_bytes = file.u16(at + 32);
    if (at + kCentralBytes + name_bytes + extra_bytes + comment_bytes > directory_end) {
      fail(where, "central directory", "a member within it", "one past its end");
    }
    const std::string name = file.text(at + kCentralBytes, name_bytes);
    uint64_t compressed = file.u32(at + 20);
    uint64_t size = file.u32(at + 24);
    uint64_t header = file.u32(at + 42);
    // Zip64: the fields that are all ones are in an extra field, in this order.
    uint64_t extra = at + kCentralBytes + name_bytes;
    const uint64_t extra_end = extra + extra_bytes;
    while (extra + 4 <= extra_end) {
      const uint32_t length = file.u16(extra + 2);
      if (extra + 4 + length > extra_end) break;
      if (file.u16(extra) == 1) {
        uint64_t field = extra + 4;
        for (uint64_t* value : {&size, &compressed, &header}) {
          if (*value != 0xffffffffU || field + 8 > extra + 4 + length) continue;
          *value = file.u64(field);
          field += 8;
        }
      }
      extra += 4 + length;
    }
    if (leads_out(name))
      fail(where, "member \"" + shown(name) + "\"", "a name within the archive", "another");
    if ((flags & 1U) != 0) fail(where, shown(name), "a member that isn't encrypted", "one that is");
    if (method != 0 || compressed != size) {
      fail(where, shown(name), "a stored member", "compression method " + std::to_string(method));
    }
    if (!file.has(header, kLocalBytes) || file.u32(header) != kLocalSignature) {
      fail(where, shown(name), "a local header at byte " + std::to_string(header), "none");
    }
    const uint64_t data = header + kLocalBytes + file.u16(header + 26) + file.u16(header + 28);
    if (!file.has(data, size)) {
      fail(where, shown(name), std::to_string(size) + " bytes at " + std::to_string(data),
           "a file of " + std::to_string(file.size()));
    }
    const Member member{file.part(data, size), file.u32(at + 16)};
    if (!members_.emplace(name, member).second)
      fail(where, shown(name), "one member of this name", "two");
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  }
}

const ZipArchive::Member* ZipArchive::find(const std::string& name) const {
  const auto it = members_.find(name);
  return it == members_.end() ? nullptr : &it->second;
}

void ZipArchive::check_crc32(const std::string& name) const {
  const Member& member = members_.at(name);
  if (member.crc32 != 0) require_crc32(name, update_crc32(0, member.bytes));
}

void ZipArchive::require_crc32(const std::string& name, uint32_t crc) const {
  const Member& member = members_.at(name);
  if (member.crc32 != 0 && crc != member.crc32) {
    fail(path().string(), shown(name) + ": CRC-32", std::to_string(member.crc32),
         std::to_string(crc));
  }
}

uint32_t update_crc32(uint32_t crc, std::span<const std::byte> data) {
  return static_cast<uint32_t>(
      ::crc32_z(crc, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

bool looks_like_zip(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  file.read(magic, sizeof magic);
  return file.gcount() == 4 && std::string_view(magic, 4) == std::string_view("PK\x03\x04", 4);
}

ZipWriter::ZipWriter(std::filesystem::path path) : path_(std::move(path)), file_(path_) {}

void ZipWriter::begin_member(const std::string& name, int64_t bytes) {
  end_member();
  const bool large = bytes >= 0xffffffff;
  // Zip64 sizes first where needed, then padding under the id that PyTorch uses for it.
  std::string extra;
  if (large) {
    put_little(extra, 1, 2);
    put_little(extra, 16, 2);
    put_little(extra, static_cast<uint64_t>(bytes), 8);
    put_little(extra, static_cast<uint64_t>(bytes), 8);
  }
  const size_t before =
      static_cast<size_t>(file_.position()) + kLocalBytes + name.size() + extra.size() + 4;
  const size_t padding = (kAlignment - before % kAlignment) % kAlignment;
  extra += "FB";
  put_little(extra, padding, 2);
  extra.append(padding, 'Z');

  std::string header;
  put_little(header, kLocalSignature, 4);
  put_little(header, large ? 45 : 20, 2);
  put_little(header, 0x0800, 2);  // names are UTF-8
  put_little(header, 0, 2);       // stored
  put_little(header, 0, 2);       // time and date: none, so that equal contents give equal files
  put_little(header, 0x0021, 2);  // 1 January 1980
  put_little(header, 0, 4);       // CRC-32, filled in by end_member
  put_little(header, large ? 0xffffffffU : static_cast<uint64_t>(bytes), 4);
  put_little(header, large ? 0xffffffffU : static_cast<uint64_t>(bytes), 4);
  put_little(header, name.size(), 2);
  put_little(header, extra.size(), 2);
  entries_.push_back({name, file_.position(), bytes, 0, 0});
  file_.write(header + name + extra);
}

void ZipWriter::write(const void* data, int64_t bytes) {
  DELTATRAIN_CHECK(!entries_.empty() && bytes <= entries_.back().bytes - entries_.back().written,
                   path_.string());
  Entry& entry = entries_.back();
  entry.crc32 = static_cast<uint32_t>(
      ::crc32_z(entry.crc32, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
  entry.written += bytes;
  file_.write(data, static_cast<size_t>(bytes));
}

void ZipWriter::add_member(const std::string& name, std::string_view content) {
  begin_member(name, static_cast<int64_t>(content.size()));
  write(content.data(), static_cast<int64_t>(content.size()));
}

void ZipWriter::end_member() {
  if (entries_.empty()) return;
  const Entry& entry = entries_.back();
  DELTATRAIN_CHECK(entry.written == entry.bytes, path_.string() + ": " + entry.name);
  std::string crc;
  put_little(crc, entry.crc32, 4);
  file_.write_at(entry.header_offset + 14, crc.data(), crc.size());
}

void ZipWriter::commit() {
  end_member();
  const int64_t directory_offset = file_.position();
  for (const Entry& entry : entries_) {
    const bool large_size = entry.bytes >= 0xffffffff;
    const bool large_offset = entry.header_offset >= 0xffffffff;
    std::string extra;
    if (large_size || large_offset) {
      put_little(extra, 1, 2);
      put_little(extra, (large_size ? 16 : 0) + (large_offset ? 8 : 0), 2);
      if (large_size) put_little(extra, static_cast<uint64_t>(entry.bytes), 8);
      if (large_size) put_little(extra, static_cast<uint64_t>(entry.bytes), 8);
      if (large_offset) put_little(extra, static_cast<uint64_t>(entry.header_offset), 8);
    }
    std::string record;
    put_little(record, kCentralSignature, 4);
    put_little(record, 45, 2);
    put_little(record, extra.empty() ? 20 : 45, 2);
    put_little(record, 0x0800, 2);
    put_little(record, 0, 2);
    put_little(record, 0, 2);
    put_little(record, 0x0021, 2);
    put_little(record, entry.crc32, 4);
    put_little(record, large_size ? 0xffffffffU : static_cast<uint64_t>(entry.bytes), 4);
    put_little(record, large_size ? 0xffffffffU : static_cast<uint64_t>(entry.bytes), 4);
    put_little(record, entry.name.size(), 2);
    put_little(record, extra.size(), 2);
    put_little(record, 0, 2);  // comment
    put_little(record, 0, 2);  // disk
    put_little(record, 0, 2);  // internal attributes
    put_little(record, 0, 4);  // external attributes
    put_little(record, large_offset ? 0xffffffffU : static_cast<uint64_t>(entry.header_offset), 4);
    file_.write(record + entry.name + extra);
  }
  const int64_t directory_bytes = file_.position() - directory_offset;
  const auto count = static_cast<uint64_t>(entries_.size());
  std::string end;
  if (count >= 0xffff || directory_offset >= 0xffffffff) {
    const int64_t at = file_.position();
    put_little(end, kEnd64Signature, 4);
    put_little(end, kEnd64Bytes - 12, 8);
    put_little(end, 45, 2);
    put_little(end, 45, 2);
    put_little(end, 0, 4);
    put_little(end, 0, 4);
    put_little(end, count, 8);
    put_little(end, count, 8);
    put_little(end, static_cast<uint64_t>(directory_bytes), 8);
    put_little(end, static_cast<uint64_t>(directory_offset), 8);
    put_little(end, kLocator64Signature, 4);
    put_little(end, 0, 4);
    put_little(end, static_cast<uint64_t>(at), 8);
    put_little(end, 1, 4);
  }
  put_little(end, kEndSignature, 4);
  put_little(end, 0, 2);
  put_little(end, 0, 2);
  put_little(end, std::min<uint64_t>(count, 0xffff), 2);
  put_little(end, std::min<uint64_t>(count, 0xffff), 2);
  put_little(end, static_cast<uint64_t>(std::min<int64_t>(directory_bytes, 0xffffffff)), 4);
  put_little(end, static_cast<uint64_t>(std::min<int64_t>(directory_offset, 0xffffffff)), 4);
  put_little(end, 0, 2);
  file_.write(end);
  file_.commit();
}

}  // namespace deltatrain::formats
