// The CUDA backend: its device and its table of functions.
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/gated_delta_rule.h"
#include "backend/cuda/gemm_library.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/nccl_collectives.h"
#include "backend/factories.h"

namespace deltatrain::backend {

namespace {

ops::OpTable make_table() {
  ops::OpTable table;
  table.backend = "cuda";
  table.linear = {cuda::linear_forward, cuda::linear_backward};
  table.linear_swiglu = {cuda::linear_swiglu_forward, cuda::linear_swiglu_backward};
  table.embedding = {cuda::embedding_forward, cuda::embedding_backward};
  table.rms_norm = {cuda::rms_norm_forward, cuda::rms_norm_backward};
  table.norm_linear = {cuda::norm_linear};
  table.gated_rms_norm = {cuda::gated_rms_norm_forward, cuda::gated_rms_norm_backward};
  table.short_conv = {cuda::short_conv_forward, cuda::short_conv_backward};
  table.short_conv_norm = {cuda::short_conv_norm_forward, cuda::short_conv_norm_backward};
  table.l2_norm = {cuda::l2_norm_forward, cuda::l2_norm_backward};
  table.delta_gate = {cuda::delta_gate_forward, cuda::delta_gate_backward};
  table.delta_step = {cuda::delta_step};
  table.gated_delta_rule = {cuda::gated_delta_rule_forward, cuda::gated_delta_rule_backward,
                            cuda::gated_delta_rule_saved_bytes};
  table.rotary = {cuda::rotary};
  table.causal_attention = {cuda::causal_attention_forward, cuda::causal_attention_backward};
  table.mla_key = {cuda::mla_key_forward, cuda::mla_key_backward};
  table.swiglu = {cuda::swiglu_forward, cuda::swiglu_backward};
  table.cross_entropy = {cuda::cross_entropy};
  table.token_scores = {cuda::token_scores};
  table.token_choices = {cuda::token_choices};
  table.adamw = {cuda::sum_of_squares, cuda::finish_gradient_norm, cuda::adamw};
  table.elementwise = {cuda::add,        cuda::convert,  cuda::sum_to,
                       cuda::row_argmax, cuda::checksum, cuda::copy_rows};
  return table;
}

// The functions that take scratch.
ops::OpTable make_planning_table() {
  ops::OpTable table;
  table.backend = "cuda";
  table.linear = {cuda::linear_forward, cuda::linear_backward};
  table.embedding.backward = cuda::embedding_backward;
  table.rms_norm.backward = cuda::rms_norm_backward;
  table.gated_rms_norm.backward = cuda::gated_rms_norm_backward;
  table.short_conv.backward = cuda::short_conv_backward;
  table.short_conv_norm = {cuda::short_conv_norm_forward, cuda::short_conv_norm_backward};
  table.delta_gate.backward = cuda::delta_gate_backward;
  table.gated_delta_rule = {cuda::gated_delta_rule_forward, cuda::gated_delta_rule_backward,
                            cuda::gated_delta_rule_saved_bytes};
  table.rotary.apply = cuda::rotary;
  table.causal_attention.backward = cuda::causal_attention_backward;
  table.adamw.sum_of_squares = cuda::sum_of_squares;
  table.token_scores = {cuda::token_scores};
  return table;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options)
      : device_({options.device_index,
                 {options.gemm_file, options.gemm_search, options.gemm_uniform_rows,
                  options.gemm_clear_outputs}}),
        table_(make_table()) {}
  Device& device() override { return device_; }
  const ops::OpTable& table() const override { return table_; }
  std::string device_identity() const override { return device_.bus_id(); }
  std::unique_ptr<dist::Collectives> make_collectives(dist::Communicator& ranks,
                                                      bool nvls) override {
    return cuda::make_nccl_collectives(device_, ranks, nvls);
  }
  void adopt_products(const std::string& choices) override { device_.gemm().adopt(choices); }

 private:
  cuda::CudaDevice device_;
  ops::OpTable table_;
};

}  // namespace

BackendTables cuda_tables() { return {make_table(), make_planning_table()}; }

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

}  // namespace deltatrain::backend
