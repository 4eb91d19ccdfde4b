// The page of a run that is going on: `train --dashboard`.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace deltatrain::cli {

class Dashboard {
 public:
  // Serves on threads of its own from now on. `address`: PORT, on this machine alone, or HOST:PORT;
  // port 0: one that is free. It only reads metrics.jsonl in `run_folder`, which need not be there
  // yet: training neither waits for it nor knows of it. ConfigError for what is no address,
  // DeviceError when the port cannot be had.
  Dashboard(const std::string& address, std::filesystem::path run_folder);
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  std::string url() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace deltatrain::cli
