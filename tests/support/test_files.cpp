#include "support/test_files.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace deltatrain::test {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "deltatrain-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(DELTATRAIN_SOURCE_DIR) / "tests" / "golden" / name;
}

ProgramResult run_program(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string command = std::string(DELTATRAIN_PROGRAM) + " " + arguments + " >" +
                              (folder / "out").string() + " 2>" + (folder / "err").string() + " </dev/null";
  const int status = std::system(command.c_str());
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  for (const auto& [name, text] : {std::pair{"out", &result.out}, {"err", &result.err}}) {
    std::ifstream file(folder / name, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    *text = content.str();
  }
  return result;
}

}  // namespace deltatrain::test
