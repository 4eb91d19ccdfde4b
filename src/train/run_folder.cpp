#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "train/verdict.h"

namespace deltatrain::train {

namespace {

std::FILE* open_for_append(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "a+");
  if (file == nullptr) {
    throw FileError(path.string() + ": cannot be opened: " + std::strerror(errno),
                    ExitCode::kEnvironment);
  }
  // A process killed in mid-line leaves a stump: end it, so that the next line stands alone.
  if (std::fseek(file, -1, SEEK_END) == 0 && std::fgetc(file) != '\n') std::fputc('\n', file);
  std::fseek(file, 0, SEEK_END);
  return file;
}

void check_folder(const std::filesystem::path& path, RunFolder::Mode mode) {
  std::error_code error;
  if (mode == RunFolder::Mode::kResume) {
    if (!std::filesystem::is_directory(path / "checkpoints", error)) {
      throw ConfigError(
          error_text(path.string(), "--resume", "the folder of a run with checkpoints/",
                     std::filesystem::exists(path / "metrics.jsonl", error)
                         ? "one that ended before its first; start anew in another folder"
                         : "none"));
    }
    return;
  }
  if (!std::filesystem::exists(path, error)) return;
  if (!std::filesystem::is_directory(path, error)) {
    throw ConfigError(error_text(path.string(), "--out", "a folder", "a file"));
  }
  if (!holds_only_verdicts(path)) {
    throw ConfigError(error_text(path.string(), "--out", "an empty or new folder (or --resume)",
                                 "a folder with files in it"));
  }
}

}  // namespace

RunFolder::RunFolder(const std::filesystem::path& path, Mode mode) : path_(path) {
  check_folder(path, mode);
  std::error_code error;
  made_ = std::filesystem::create_directories(path, error);
  if (error) {
    throw FileError(path.string() + ": cannot be created: " + error.message(),
                    ExitCode::kEnvironment);
  }
  lock_ = ::open((path / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) {
    throw FileError((path / ".lock").string() + ": cannot be opened: " + std::strerror(errno),
                    ExitCode::kEnvironment);
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw ConfigError(
        error_text(path.string(), "run folder", "no other process", "one that is writing here"));
  }
  metrics_ = open_for_append(path / "metrics.jsonl");
  log_ = open_for_append(path / "log.txt");
}

RunFolder::~RunFolder() {
  if (metrics_ != nullptr) std::fclose(metrics_);
  if (log_ != nullptr) std::fclose(log_);
  if (lock_ >= 0) ::close(lock_);
}

void RunFolder::append(std::FILE* file, const char* name, const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file) == line.size() &&
                       std::fputc('\n', file) == '\n' && std::fflush(file) == 0;
  if (!written) {
    throw FileError((path_ / name).string() + ": cannot be written: " + std::strerror(errno),
                    ExitCode::kEnvironment);
  }
}

void RunFolder::add_metrics(const std::string& json_line) {
  append(metrics_, "metrics.jsonl", json_line);
}
void RunFolder::add_log(const std::string& line) { append(log_, "log.txt", line); }
void RunFolder::write_recipe(const std::string& yaml) {
  write_file_atomically(path_ / "recipe.yaml", yaml);
}

void RunFolder::discard() {
  std::error_code ignored;
  for (const char* name :
       {"recipe.yaml", "metrics.jsonl", "log.txt", "gemm_algorithms.json", ".lock"}) {
    std::filesystem::remove(path_ / name, ignored);
  }
  if (made_) std::filesystem::remove(path_, ignored);  // only if it is empty
}

}  // namespace deltatrain::train
