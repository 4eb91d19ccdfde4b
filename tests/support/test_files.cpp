#include "support/test_files.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

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
  const char* const moved = std::getenv("DELTATRAIN_TEST_SOURCES");
  return std::filesystem::path(moved != nullptr ? moved : DELTATRAIN_SOURCE_DIR) / "tests" /
         "golden" / name;
}

ProgramResult run_program(const std::string& arguments, double kill_after_seconds) {
  const TemporaryFolder folder;
  const std::string command = "exec " + std::string(DELTATRAIN_PROGRAM) + " " + arguments + " >" +
                              (folder / "out").string() + " 2>" + (folder / "err").string() + " </dev/null";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  if (kill_after_seconds > 0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kill_after_seconds);
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= end) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } else {
    ::waitpid(child, &status, 0);
  }
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
