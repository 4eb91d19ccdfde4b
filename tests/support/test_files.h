// Temporary folders and golden files for tests.
#pragma once

#include <filesystem>
#include <string>

namespace deltatrain::test {

// A fresh folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// tests/golden/NAME of the source tree: the one that was built, or where DELTATRAIN_TEST_SOURCES says.
std::filesystem::path golden_path(const std::string& name);

struct ProgramResult {
  int exit_code = 0;  // 128 + n when signal n ended it
  std::string out;
  std::string err;
};

// Runs the built program with a shell-quoted argument line; with `kill_after_seconds` > 0 it is
// killed (SIGKILL, exit code 137) when it has run that long.
ProgramResult run_program(const std::string& arguments, double kill_after_seconds = 0);

}  // namespace deltatrain::test
