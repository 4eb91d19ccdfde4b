#include "cli/device_options.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/validators.h"

namespace deltatrain::cli {

namespace {

DType activation_dtype(DeviceKind kind, const std::string& precision) {
  if (precision.empty()) {
    if (kind == DeviceKind::kCuda) return DType::kBF16;
    return kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
  }
  const std::string device = backend::device_kind_name(kind);
  if (precision == "f32") return DType::kF32;
  if (precision == "bf16" && kind == DeviceKind::kCuda) return DType::kBF16;
  if (precision == "f64" && kind == DeviceKind::kReference) return DType::kF64;
  const char* known = kind == DeviceKind::kCuda  ? "bf16 or f32"
                      : kind == DeviceKind::kCpu ? "f32"
                                                 : "f64 or f32";
  throw ConfigError(
      error_text("", "precision on device " + device, known, "\"" + precision + "\""));
}

}  // namespace

void DeviceOptions::add_to(CLI::App& command) {
  command.add_option("--device", device, "cpu, cuda or reference (plain loops in double, slow)")
      ->capture_default_str();
  command.add_option("--precision", precision,
                     "f32 or bf16 (cuda), f64 (reference); default: f32 on cpu, bf16 on cuda");
  command.add_option("--threads", threads, "Threads of the cpu device; 0: all cores")
      ->check(whole_number(0, 4096))
      ->capture_default_str();
  command.add_flag("!--no-gemm-search", gemm_search,
                   "cuda: take a fixed choice of product algorithms");
  command.add_option("--gemm-file", gemm_file,
                     "cuda: file of timed product algorithms, read and extended; train: "
                     "default OUT/gemm_algorithms.json");
}

DeviceChoice::DeviceChoice(const DeviceOptions& options, const std::string& gemm_file) {
  const DeviceKind kind = backend::parse_device_kind(options.device);
  const DType dtype = activation_dtype(kind, options.precision);
  backend::BackendOptions backend_options;
  backend_options.num_threads = options.threads;
  backend_options.device_index = options.device_index;
  backend_options.gemm_file = options.gemm_file.empty() ? gemm_file : options.gemm_file;
  backend_options.gemm_search = options.gemm_search;
  backend_options.gemm_uniform_rows = options.gemm_uniform_rows;
  backend_options.gemm_clear_outputs = options.gemm_clear_outputs;
  backend_ = backend::make_backend(kind, backend_options);
  backend_options.planned = kind;
  plan_ = backend::make_backend(DeviceKind::kPlan, backend_options);
  context_ = Context{&backend_->device(), &backend_->table(), nullptr, dtype};
  planning_context_ = Context{&plan_->device(), &plan_->table(), nullptr, dtype};
}

}  // namespace deltatrain::cli
