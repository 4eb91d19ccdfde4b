// Models of three blocks that a test has time for, and the backends to run them on. In a header alone: tests link what
// they use of it.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/registry.h"
#include "config/model_config.h"

namespace deltatrain::test {

// GDN or KDA; a hybrid has latent attention in the middle.
inline ModelConfig small_model(ModelFamily family, bool hybrid, int64_t vocab_size) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = vocab_size;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 3;
  config.num_heads = 2;
  config.num_v_heads = 4;
  config.head_dim = 16;
  config.expand_v = family == ModelFamily::kKda ? 2 : 1;
  if (hybrid) {
    config.attn = MlaConfig{.layers = {1},
                            .num_heads = 2,
                            .q_lora_rank = 24,
                            .kv_lora_rank = 16,
                            .qk_nope_head_dim = 8,
                            .qk_rope_head_dim = 8,
                            .v_head_dim = 16};
  }
  return config;
}

inline DType usual_dtype(DeviceKind kind) {
  if (kind == DeviceKind::kCuda) return DType::kBF16;
  return kind == DeviceKind::kCpu ? DType::kF32 : DType::kF64;
}

// A backend and the planning one beside it, with contexts without arena.
struct Backends {
  explicit Backends(DeviceKind kind = DeviceKind::kCpu) : Backends(kind, usual_dtype(kind)) {}
  Backends(DeviceKind kind, DType dtype, bool gemm_uniform_rows = false)
      : main(backend::make_backend(kind, options(kind, gemm_uniform_rows))),
        plan(backend::make_backend(DeviceKind::kPlan, options(kind, gemm_uniform_rows))),
        context{&main->device(), &main->table(), nullptr, dtype},
        planning{&plan->device(), &plan->table(), nullptr, dtype} {}

  std::unique_ptr<backend::Backend> main, plan;
  Context context, planning;

 private:
  static backend::BackendOptions options(DeviceKind kind, bool gemm_uniform_rows) {
    backend::BackendOptions options;
    options.planned = kind;
    options.gemm_uniform_rows = gemm_uniform_rows;
    return options;
  }
};

}  // namespace deltatrain::test
