// The folder of a run: what is written there, and who may write.
//
//   recipe.yaml     the resolved recipe; alone repeats the run
//   metrics.jsonl   one JSON object a line, each with a "kind": docs/formats/run_folder.md
//   log.txt         Megatron's familiar line
//   checkpoints/    checkpoint/checkpoint.h
//   ranks/N.json    each rank's verdict at its end: train/verdict.h
//   profile/        of `train --profile`
// gemm_algorithms.json, the product algorithms of a CUDA run, is the backend's.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

namespace deltatrain::train {

class RunFolder {
 public:
  enum class Mode : uint8_t { kNew, kResume };

  // kNew: the folder is made, and must be empty if it is there, verdicts of a run that never began
  // apart.
  // kResume: it must hold a run. Takes a lock that ends with the process,
  // so that no second process writes here. Throws ConfigError, FileError.
  RunFolder(const std::filesystem::path& path, Mode mode);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  // Appends a line and hands it to the operating system.
  // FileError (exit code 5) when the disk is full.
  void add_metrics(const std::string& json_line);
  void add_log(const std::string& line);
  void write_recipe(const std::string& yaml);

  // Takes back a new folder in which nothing has happened yet; one that was there stays, empty.
  void discard();

 private:
  void append(std::FILE* file, const char* name, const std::string& line);

  std::filesystem::path path_;
  bool made_ = false;  // the folder itself
  int lock_ = -1;
  std::FILE* metrics_ = nullptr;
  std::FILE* log_ = nullptr;
};

}  // namespace deltatrain::train
