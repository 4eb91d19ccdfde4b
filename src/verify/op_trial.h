// One call of an op on two contexts: its arguments
// in both places, and the comparison of what came out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "ops/context.h"
#include "verify/op_cases.h"
#include "verify/tolerance.h"

namespace deltatrain::verify {

enum class Role : uint8_t { kIn, kOut, kInOut };

// Where a tensor lies in its block. Gaps hold NaN, which must neither leak nor be overwritten.
enum class Placement : uint8_t {
  kContiguous,
  kStridedRows,   // a column range of a wider matrix, 8 elements in, as in a merged projection
  kOddRows,       // the same 3 elements in, with an odd row stride: no wide loads
  kStridedHeads,  // the last part of wider heads
};

class Argument {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return reference_.shape(); }

 private:
  friend class OpTrial;
  friend class Pick;

  std::string name_;
  Role role_ = Role::kIn;
  Quantity quantity_ = Quantity::kExact;
  Tensor device_;     // in the tested backend's memory and dtype
  Tensor reference_;  // f64 (or the same integers) in host memory, contiguous
  Buffer device_block_;
  Buffer reference_block_;
  std::vector<unsigned char> image_;      // what the device block starts as, guards included
  std::vector<int64_t> element_offsets_;  // byte offset in the block of each element, in order
};

class SequenceArgument {
 public:
  const std::vector<int32_t>& offsets() const { return offsets_; }
  int64_t num() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_rows() const { return offsets_.back(); }

 private:
  friend class OpTrial;
  friend class Pick;
  std::vector<int32_t> offsets_;
  Buffer device_block_;
  Buffer host_block_;
};

class OpTrial;

// Chooses the side: the same code fills in the arguments of both calls.
class Pick {
 public:
  Tensor operator()(const Argument& argument) const {
    return on_device_ ? argument.device_ : argument.reference_;
  }
  Tensor operator()(const Argument* argument) const {
    return argument == nullptr ? Tensor() : (*this)(*argument);
  }
  ops::Sequences operator()(const SequenceArgument& sequences) const;
  // Bytes that only the backend understands, guarded on the device.
  Tensor opaque(int64_t bytes) const;

 private:
  friend class OpTrial;
  Pick(OpTrial& trial, bool on_device) : trial_(&trial), on_device_(on_device) {}
  OpTrial* trial_;
  bool on_device_;
};

// A value of element i, from the stream named after the tensor.
using Fill = std::function<double(const RandomStream& stream, int64_t i)>;
Fill normal(double deviation = 1);
Fill uniform(double low, double high);
Fill constant(double value);

class OpTrial {
 public:
  OpTrial(const Context& tested, const Context& reference, std::string op, std::string case_name,
          std::vector<OpCaseResult>& results, Surroundings surroundings = Surroundings::kGuarded);

  // Activations have the tested dtype; statistics f32 (f64 where that is f64).
  Argument& activation(const std::string& name, const Shape& shape, const Fill& fill = normal(),
                       Placement placement = Placement::kContiguous);
  Argument& activation(const std::string& name, const Shape& shape,
                       const std::vector<double>& values,
                       Placement placement = Placement::kContiguous);
  Argument& statistic(const std::string& name, const Shape& shape, const Fill& fill = normal());
  Argument& statistic(const std::string& name, const Shape& shape,
                      const std::vector<double>& values);
  Argument& integers(const std::string& name, const std::vector<int32_t>& values);
  // Anything else, by dtype; the reference holds the same numbers in f64 (integers as they are).
  Argument& argument(const std::string& name, Role role, DType dtype, const Shape& shape,
                     Quantity quantity, const std::vector<double>& values,
                     Placement placement = Placement::kContiguous);

  // The same dtype on both sides, for ops whose arguments have one of their own.
  Argument& literal(const std::string& name, Role role, DType dtype, const Shape& shape,
                    Quantity quantity, const std::vector<double>& values);

  Argument& activation_output(const std::string& name, const Shape& shape, Quantity quantity,
                              Placement placement = Placement::kContiguous);
  Argument& statistic_output(const std::string& name, const Shape& shape, Quantity quantity);
  // A parameter gradient: starts with numbers of its own, to which the op adds.
  Argument& accumulated(const std::string& name, const Shape& shape,
                        Quantity quantity = Quantity::kWeightGradient);
  // An argument that is input and output at once, as when an output aliases an input.
  Argument& changed(Argument& argument, Quantity quantity);

  SequenceArgument& sequences(const std::vector<int32_t>& offsets);

  // Not left out by Surroundings::kExact for its size: where a kernel is only taken, or only comes round to a second
  // piece of work, with more elements than kMaxExactElements.
  void keep_when_exact() { is_kept_ = true; }

  using Call = std::function<void(const Context& context, const Pick& pick)>;
  // Runs the call on both sides and records one result per output.
  void run(const Call& call);
  // After run: changes every input that has `num_rows` rows from
  // each cut on, runs again, and expects the rows of outputs before
  // the cut to keep their bits. For calls whose rows are one sequence.
  void expect_prefix_unchanged(const Call& call, int64_t num_rows,
                               const std::vector<int64_t>& cuts);

  // What the reference computed (or the rounded input), to go on with.
  std::vector<double> values(const Argument& argument) const;

  DType activation_dtype() const { return tested_.activation_dtype; }
  DType statistics_dtype() const { return tested_.statistics_dtype(); }

 private:
  friend class Pick;
  struct Opaque {
    Buffer block;
    int64_t bytes = 0;
  };

  Argument& make(const std::string& name, Role role, DType dtype, DType reference_dtype,
                 const Shape& shape, Quantity quantity, const std::vector<double>& values,
                 Placement placement);
  int64_t guard_bytes() const;
  bool is_left_out() const;
  void upload(Argument& argument) const;
  std::vector<unsigned char> download(const Argument& argument) const;
  bool run_tested(const Call& call);
  void check_surroundings(const Argument& argument, const std::vector<unsigned char>& block);
  void compare(const Argument& argument, const std::vector<unsigned char>& block);
  void check_opaque();
  OpCaseResult& fail(const std::string& tensor, const std::string& note);

  Context tested_;
  Context reference_;
  std::string op_;
  std::string case_name_;
  std::vector<OpCaseResult>* results_;
  Surroundings surroundings_;
  std::vector<std::unique_ptr<Argument>> arguments_;
  std::vector<std::unique_ptr<SequenceArgument>> sequences_;
  std::vector<Opaque> opaque_;
  std::vector<Buffer> reference_opaque_;
  bool is_kept_ = false;
  bool failed_ = false;
};

}  // namespace deltatrain::verify
