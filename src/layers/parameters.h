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
#include "tensor/segment.h"

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
  // Elements: in a builder from the start of what has the same storage, in a store from the start of
  // the flat buffers.
  int64_t offset = 0;

  int64_t num_elements() const { return checkpoint_shape.num_elements(); }
};

// Handle of a matrix or vector that ops read: one tensor, or a whole group seen as one matrix.
struct ParameterView {
  int64_t offset = -1;  // as in a builder
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
  int64_t num_matrix_elements() const { return matrices_; }  // so far, padding included
  int64_t num_elements() const;                              // of all, padding included

 private:
  std::vector<ParameterInfo> infos_;
  int64_t matrices_ = 0;
  int64_t masters_ = 0;
};

// How a training state is spread over ranks. The matrices are cut into ranges of about
// bucket_elements, whose gradients are summed one after the other. Sharded (ZeRO-1), each range has
// as many equal parts as there are ranks, and part r is updated by rank r alone; all else is updated
// by every rank alike.
struct Sharding {
  int rank = 0;
  int num_ranks = 1;
  bool sharded = false;
  int64_t bucket_elements = 10'000'000;

  bool is_sharded() const { return sharded && num_ranks > 1; }
};

// Told how far a pass has come, so that exchanges with other ranks go on beside it. Elements of the
// matrices, as in ParameterView::offset.
class PassListener {
 public:
  virtual ~PassListener() = default;
  virtual void needs(int64_t end) = 0;       // forward: the next ops read matrices before `end`
  virtual void finished(int64_t begin) = 0;  // backward: gradients from `begin` on are complete
};

// The flat buffers, in device memory. Padding between groups is zero and stays zero.
class ParameterStore {
 public:
  // `gradients`: none for inference.
  enum class Gradients : uint8_t { kNone, kAllocate };
  ParameterStore(const Context& context, std::vector<ParameterInfo> infos, Gradients gradients,
                 const Sharding& sharding = {});

  const std::vector<ParameterInfo>& infos() const { return infos_; }
  int64_t num_parameters() const;  // without padding
  int64_t num_bytes() const;       // device memory held

  Tensor value(const ParameterView& view) const;     // what ops read
  Tensor gradient(const ParameterView& view) const;  // f32 (f64)
  // Flat range of one tensor in its checkpoint shape; not where masters are sharded.
  Tensor master(const ParameterInfo& info) const;
  Tensor gradient(const ParameterInfo& info) const;
  Tensor flat_master() const;    // where masters are sharded: the segments alone
  Tensor flat_compute() const;   // bf16 copy, or undefined where the master serves
  Tensor flat_gradient() const;  // undefined without gradients

  int64_t num_elements() const { return size_; }  // of the flat buffers, padding included
  int64_t num_matrix_elements() const { return matrices_; }
  // Cuts of the matrices: range i is [cuts[i], cuts[i + 1]).
  const std::vector<int64_t>& range_cuts() const { return cuts_; }
  // What this rank updates, in order; the last one holds all that is not a matrix, on every rank.
  const std::vector<Segment>& segments() const { return segments_; }
  int64_t num_state_elements() const;  // of all segments
  bool has_sharded_master() const { return sharded_master_; }

  // Copies the master into the compute copy, after weights were set from outside.
  void refresh_compute(const Context& context);

 private:
  int64_t flat_offset(const ParameterView& view) const;

  std::vector<ParameterInfo> infos_;
  int64_t size_ = 0;
  int64_t matrices_ = 0;
  std::vector<int64_t> cuts_;
  std::vector<Segment> segments_;
  bool sharded_master_ = false;
  DType master_dtype_ = DType::kF32;
  Buffer master_;
  Buffer compute_;
  Buffer gradient_;
};

}  // namespace deltatrain::layers
