#include "checkpoint/folders.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"

namespace deltatrain::checkpoint::internal {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what,
                       const std::string& reason) {
  throw FileError(path.string() + ": " + what + ": " + reason, ExitCode::kEnvironment);
}

}  // namespace

void create_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "cannot be created", error.message());
}

void remove_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail(path, "cannot be removed", error.message());
}

void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) fail(to, "cannot be renamed to", error.message());
}

void exchange_folders(const std::filesystem::path& a, const std::filesystem::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  fail(b, "cannot be replaced in one step; move it away first", std::strerror(errno));
}

void require_free_space(const std::filesystem::path& folder, int64_t bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) return;  // a file system that doesn't say; writing will
  if (space.available < static_cast<uint64_t>(bytes)) {
    throw FileError(
        error_text(folder.string(), "disk", std::to_string(bytes) + " bytes free for a checkpoint",
                   std::to_string(space.available)),
        ExitCode::kEnvironment);
  }
}

}  // namespace deltatrain::checkpoint::internal
