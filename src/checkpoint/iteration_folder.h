// The folder of one iteration while it is written: it fills under a temporary name, takes its place
// whole, and then the tracker names it. Whatever happens before, the tracker keeps naming what it
// named.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>

namespace deltatrain::checkpoint {

class IterationFolder {
 public:
  // Creates FOLDER/iter_NNNNNNN.tmp, empty. FileError (exit code 5) when it cannot, or when fewer
  // than `bytes` are free.
  IterationFolder(const std::filesystem::path& folder, int64_t step, int64_t bytes);
  ~IterationFolder();  // without commit(): removes what was written
  IterationFolder(const IterationFolder&) = delete;
  IterationFolder& operator=(const IterationFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }    // where files go
  const std::filesystem::path& final_path() const { return final_; }  // where they end up

  // Renames the folder (or exchanges it with one of the same step), flushes, replaces the tracker.
  // All files in it have been flushed. `before_tracker` is called in between.
  void commit(const std::function<void()>& before_tracker);

  double seconds() const;  // since construction

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::filesystem::path folder_, temporary_, final_;
  int64_t step_;
  bool done_ = false;
};

}  // namespace deltatrain::checkpoint
