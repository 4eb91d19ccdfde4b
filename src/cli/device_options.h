// The options --device and --precision, and the backends they choose.
#pragma once

#include <memory>
#include <string>

#include "backend/registry.h"

namespace CLI {
class App;
}  // namespace CLI

namespace deltatrain::cli {

struct DeviceOptions {
  std::string device = "cpu";
  std::string precision;  // "": f32 on cpu, bf16 on cuda, f64 on reference
  int threads = 0;
  bool gemm_search = true;
  std::string gemm_file;
  int device_index = 0;  // among several of a kind; no option
  bool gemm_uniform_rows =
      false;  // no option: what commands ask for whose results are compared bit for bit
  bool gemm_clear_outputs = false;  // no option: `selftest --sanitize`

  void add_to(CLI::App& command);
};

// A backend and its planning twin, with contexts that have no arena yet.
class DeviceChoice {
 public:
  explicit DeviceChoice(const DeviceOptions& options, const std::string& gemm_file = "");

  const Context& context() const { return context_; }
  const Context& planning_context() const { return planning_context_; }
  backend::Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Backend> plan_;
  Context context_;
  Context planning_context_;
};

}  // namespace deltatrain::cli
