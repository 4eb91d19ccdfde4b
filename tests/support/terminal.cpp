#include "support/terminal.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace deltatrain::test {

ProgramResult run_program_on_terminal(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string command = "exec " + std::string(DELTATRAIN_PROGRAM) + " " + arguments + " >" +
                              (folder / "out").string() + " </dev/null";
  ProgramResult result;
  int terminal = -1, program_end = -1;
  const winsize size{.ws_row = 25, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  if (::openpty(&terminal, &program_end, nullptr, nullptr, &size) != 0) {
    result.exit_code = 127;
    return result;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(program_end, STDERR_FILENO);
    ::close(program_end);
    ::close(terminal);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(program_end);
  char part[4096];
  for (ssize_t bytes = 0; (bytes = ::read(terminal, part, sizeof part)) > 0;)
    result.err.append(part, static_cast<size_t>(bytes));
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ifstream file(folder / "out", std::ios::binary);
  result.out.assign(std::istreambuf_iterator<char>(file), {});
  return result;
}

}  // namespace deltatrain::test
