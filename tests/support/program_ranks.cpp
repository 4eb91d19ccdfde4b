#include "support/program_ranks.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace deltatrain::test {

int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  socklen_t size = sizeof address;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(descriptor);
  return ntohs(address.sin_port);
}

ProgramRanks::ProgramRanks(std::vector<std::string> launcher) : launcher_(std::move(launcher)) {}

ProgramRanks::~ProgramRanks() {
  for (Process& process : processes_) {
    if (process.ended) continue;
    ::kill(process.id, SIGKILL);
    reap(process, /*wait=*/true);
  }
}

void ProgramRanks::start(const std::string& arguments,
                         const std::map<std::string, std::string>& variables,
                         const std::vector<std::string>& launcher) {
  const std::string number = std::to_string(processes_.size());
  std::string words;
  for (const std::string& word : launcher.empty() ? launcher_ : launcher) words += word + " ";
  const std::string command = "exec " + words + DELTATRAIN_PROGRAM + " " + arguments + " >" +
                              (folder_ / ("out" + number)).string() + " 2>" +
                              (folder_ / ("err" + number)).string() + " </dev/null";
  const pid_t child = ::fork();
  if (child == 0) {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  processes_.push_back({child});
}

void ProgramRanks::start_all(int size, const std::string& arguments) {
  const std::string port = std::to_string(free_port());
  for (int rank = 0; rank < size; ++rank) {
    start(arguments, {{"RANK", std::to_string(rank)},
                      {"WORLD_SIZE", std::to_string(size)},
                      {"LOCAL_RANK", std::to_string(rank)},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", port}});
  }
}

void ProgramRanks::kill(int process, int signal) {
  ::kill(processes_.at(static_cast<size_t>(process)).id, signal);
}

bool ProgramRanks::reap(Process& process, bool wait) {
  int status = 0;
  if (process.ended) return true;
  if (::waitpid(process.id, &status, wait ? 0 : WNOHANG) != process.id) return false;
  process.ended = true;
  process.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

bool ProgramRanks::has_ended(int process) {
  return reap(processes_.at(static_cast<size_t>(process)), /*wait=*/false);
}

bool ProgramRanks::wait_until(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::vector<int> ProgramRanks::exit_codes(double seconds) {
  wait_until(seconds, [this] {
    bool all = true;
    for (Process& process : processes_) all = reap(process, /*wait=*/false) && all;
    return all;
  });
  std::vector<int> codes;
  for (Process& process : processes_) {
    if (!process.ended) {
      ::kill(process.id, SIGKILL);
      reap(process, /*wait=*/true);
    }
    codes.push_back(process.exit_code);
  }
  return codes;
}

namespace {
std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
}  // namespace

std::string ProgramRanks::err(int process) const {
  return content(folder_ / ("err" + std::to_string(process)));
}

std::string ProgramRanks::out(int process) const {
  return content(folder_ / ("out" + std::to_string(process)));
}

}  // namespace deltatrain::test
