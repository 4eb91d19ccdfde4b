// Parameters of a model: declared once in order, stored in flat buffers.
//
// Layers declare their tensors with a ParameterBuilder. Tensors that one product reads together (q,
// k, v, ... of a mixer) form a group and lie end to end, so the merged weight is a view and
// checkpoints still see each tensor under its own name. Groups start at multiples of
// ops::kDecayBlock elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/context.h"

namespace deltatrain::layers {

// How a tensor is drawn before training.
enum class Init : uint8_t {
  kNormal,          // normal(0, initializer_range)
  kOne,             // norm weights
  kZero,            // biases
  kLogUniformA,     // A_log = ln U(low, 16): low 0 (GDN) or 1 (KDA)
  kZeroA,           // A_log = 0 (KDA with safe_gate)
  kInverseSoftplus  // dt_bias = inverse softplus of exp(U(ln 1e-3, ln 1e-1))
};

// Which storage layers read in products and elsewhere.
enum class Storage : uint8_t {
  kMatrix,  // activation dtype (bf16 copy of the f32 master, or the master itself)
  kMaster   // always the master: norms, gates, convolutions, biases
};

struct ParameterInfo {
  std::string name;        // as in checkpoints: model.layers.0.attn.q_proj.weight
  Shape checkpoint_shape;  // [channels, 1, W] for convolutions
  Init init = Init::kNormal;
  double init_low = 0;  // kLogUniformA: lower end of the range
  Storage storage = Storage::kMatrix;
  int64_t offset = 0;  // elements from the start of the flat buffer

  int64_t num_elements() const { return checkpoint_shape.num_elements(); }
};

// Handle of a matrix or vector that ops read: one tensor, or a whole group seen as one matrix.
struct ParameterView {
  int64_t offset = -1;
  Shape shape;
  Storage storage = Storage::kMatrix;
  bool defined() const { return offset >= 0; }
};

class ParameterBuilder {
 public:
  // A tensor of its own.
  ParameterView add(const ParameterInfo& info);
  // A group: tensors of shape [rows_i, columns...] laid
  // end to end; the view is [sum of rows_i, columns].
  ParameterView add_group(const std::vector<ParameterInfo>& infos);

  const std::vector<ParameterInfo>& infos() const { return infos_; }
  int64_t num_elements() const { return size_; }  // of the flat buffer, padding included

 private:
  std::vector<ParameterInfo> infos_;
  int64_t size_ = 0;
};

// The flat buffers, in device memory. Padding between groups is zero and stays zero.
class ParameterStore {
 public:
  // `gradients`: none for inference.
  enum class Gradients : uint8_t { kNone, kAllocate };
  ParameterStore(const Context& context, std::vector<ParameterInfo> infos, int64_t num_elements,
                 Gradients gradients);

  const std::vector<ParameterInfo>& infos() const { return infos_; }
  int64_t num_parameters() const;  // without padding
  int64_t num_bytes() const;       // device memory held

  Tensor value(const ParameterView& view) const;     // what ops read
  Tensor gradient(const ParameterView& view) const;  // f32 (f64)
  Tensor master(
      const ParameterInfo& info) const;  // flat range of one tensor in its checkpoint shape
  Tensor gradient(const ParameterInfo& info) const;
  Tensor flat_master() const;
  Tensor flat_compute() const;   // bf16 copy, or undefined where the master serves
  Tensor flat_gradient() const;  // undefined without gradients

  // Copies the master into the compute copy, after weights were set from outside.
  void refresh_compute(const Context& context);

 private:
  std::vector<ParameterInfo> infos_;
  int64_t size_ = 0;
  DType master_dtype_ = DType::kF32;
  Buffer master_;
  Buffer compute_;
  Buffer gradient_;
};

}  // namespace deltatrain::layers
