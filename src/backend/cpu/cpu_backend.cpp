#include <fstream>
#include <string>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/factories.h"
#include "device/host_device.h"

namespace deltatrain::backend {

namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
      if (at != std::string::npos) return line.substr(at);
    }
  }
  return "cpu";
}

ops::OpTable make_table() {
  ops::OpTable table;
  table.backend = "cpu";
  table.linear = {.forward = cpu::linear_forward, .backward = cpu::linear_backward};
  table.embedding = {.forward = cpu::embedding_forward, .backward = cpu::embedding_backward};
  table.rms_norm = {.forward = cpu::rms_norm_forward, .backward = cpu::rms_norm_backward};
  table.gated_rms_norm = {.forward = cpu::gated_rms_norm_forward,
                          .backward = cpu::gated_rms_norm_backward};
  table.short_conv = {.forward = cpu::short_conv_forward, .backward = cpu::short_conv_backward};
  table.l2_norm = {.forward = cpu::l2_norm_forward, .backward = cpu::l2_norm_backward};
  table.delta_gate = {.forward = cpu::delta_gate_forward, .backward = cpu::delta_gate_backward};
  table.gated_delta_rule = {.forward = cpu::gated_delta_rule_forward,
                            .backward = cpu::gated_delta_rule_backward,
                            .saved_bytes = cpu::gated_delta_rule_saved_bytes};
  table.rotary = {.apply = cpu::rotary};
  table.causal_attention = {.forward = cpu::causal_attention_forward,
                            .backward = cpu::causal_attention_backward};
  table.mla_key = {.forward = cpu::mla_key_forward, .backward = cpu::mla_key_backward};
  table.swiglu = {.forward = cpu::swiglu_forward, .backward = cpu::swiglu_backward};
  table.cross_entropy = {.apply = cpu::cross_entropy};
  table.token_scores = {.apply = cpu::token_scores};
  table.token_choices = {.apply = cpu::token_choices};
  table.adamw = {.sum_of_squares = cpu::sum_of_squares,
                 .finish_gradient_norm = cpu::finish_gradient_norm,
                 .adamw = cpu::adamw};
  table.elementwise = {.add = cpu::add,
                       .convert = cpu::convert,
                       .sum_to = cpu::sum_to,
                       .row_argmax = cpu::row_argmax,
                       .checksum = cpu::checksum,
                       .copy_rows = cpu::copy_rows};
  return table;
}

// The functions that take scratch or tell sizes.
ops::OpTable make_planning_table(const ops::OpTable& all) {
  ops::OpTable table;
  table.backend = all.backend;
  table.linear = all.linear;
  table.rms_norm.backward = all.rms_norm.backward;
  table.gated_rms_norm.backward = all.gated_rms_norm.backward;
  table.short_conv = all.short_conv;
  table.delta_gate = all.delta_gate;
  table.gated_delta_rule = all.gated_delta_rule;
  table.rotary = all.rotary;
  table.causal_attention = all.causal_attention;
  table.adamw.sum_of_squares = all.adamw.sum_of_squares;
  return table;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::string description)
      : device_(DeviceKind::kCpu, std::move(description)), table_(make_table()) {}
  Device& device() override { return device_; }
  const ops::OpTable& table() const override { return table_; }

 private:
  HostDevice device_;
  ops::OpTable table_;
};

}  // namespace

BackendTables cpu_tables() {
  const ops::OpTable all = make_table();
  return {.table = all, .planning = make_planning_table(all)};
}

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  if (options.num_threads > 0) omp_set_num_threads(options.num_threads);
  const int threads = cpu::max_threads();
  return std::make_unique<CpuBackend>(processor_name() + ", " + std::to_string(threads) +
                                      (threads == 1 ? " thread" : " threads"));
}

}  // namespace deltatrain::backend
