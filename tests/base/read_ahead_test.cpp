#include "base/read_ahead.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain {
namespace {

using test::TemporaryFolder;

// Bytes that differ from place to place.
std::string some_bytes(size_t count) {
  std::string bytes(count, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Flushes the file and takes it out of the page cache, where the system lets us.
void forget(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

std::vector<std::string> read(const std::vector<FilePart>& parts) {
  std::vector<std::string> got(parts.size());
  size_t last = 0;
  read_parts(parts, [&](size_t part, size_t begin, std::span<const std::byte> piece) {
    EXPECT_GE(part, last);
    EXPECT_EQ(begin, got[part].size()) << "of part " << part;
    EXPECT_FALSE(piece.empty());
    EXPECT_LE(piece.size(), size_t{2} << 20);
    got[part].append(reinterpret_cast<const char*>(piece.data()), piece.size());
    last = part;
  });
  return got;
}

TEST(ReadPartsTest, GivesEachPartsBytesInOrder) {
  const TemporaryFolder folder;
  // Two files of odd lengths past several blocks; parts within a block, across blocks, with gaps
  // between them, empty, and the whole.
  const std::string bytes[] = {some_bytes((size_t{45} << 20) + 12345), some_bytes(5'000'001)};
  const std::filesystem::path paths[] = {folder / "a", folder / "b"};
  for (int f = 0; f < 2; ++f) write(paths[f], bytes[f]);
  const MappedFile maps[] = {MappedFile(paths[0]), MappedFile(paths[1])};
  const std::vector<std::array<size_t, 3>> wanted = {
      {0, 0, 1},          {0, 1, 4096},        {0, 4097, 0},
      {0, 5000, 3},       {0, 70000, 9000000}, {0, 20'000'000, 4'194'304},
      {0, 47'198'264, 1}, {1, 0, 5'000'001},   {1, 4'999'999, 2}};
  std::vector<FilePart> parts;
  std::vector<std::string> expected;
  for (const auto& [file, begin, count] : wanted) {
    parts.push_back({&paths[file], maps[file].bytes(), maps[file].bytes().subspan(begin, count)});
    expected.push_back(bytes[file].substr(begin, count));
  }
  EXPECT_EQ(read(parts), expected) << "from the page cache";
  for (const auto& path : paths) forget(path);
  EXPECT_EQ(read(parts), expected) << "from the disk";
  EXPECT_TRUE(read({}).empty());
}

TEST(ReadPartsTest, NamesAFileThatBecameShorterOrIsGone) {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  write(path, some_bytes(9'000'000));
  const MappedFile map(path);
  const std::vector<FilePart> parts = {{&path, map.bytes(), map.bytes()}};
  const auto message = [&] {
    try {
      read_parts(parts, [](size_t, size_t, std::span<const std::byte>) {});
    } catch (const FileError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  std::filesystem::resize_file(path, 8'000'000);
  EXPECT_EQ(message(), path.string() + ": cannot be read: ends too early");
  std::filesystem::remove(path);
  EXPECT_EQ(message(), path.string() + ": cannot be read: No such file or directory");
}

TEST(ReadPartsTest, EndsWithWhatItsConsumerThrows) {
  const TemporaryFolder folder;
  const auto path = folder / "a";
  write(path, some_bytes(50'000'000));
  const MappedFile map(path);
  int pieces = 0;
  EXPECT_THROW(read_parts({{&path, map.bytes(), map.bytes()}},
                          [&](size_t, size_t, std::span<const std::byte>) {
                            if (++pieces == 3) throw NumericError("enough");
                          }),
               NumericError);
  EXPECT_EQ(pieces, 3);
}

}  // namespace
}  // namespace deltatrain
