// What the ops say about arguments that do not fit, and that they say it before a backend is asked.
#include "ops/check_arguments.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/op_table.h"

namespace deltatrain::test {

namespace {

// Addresses are never followed by the checks.
Tensor fake(DType dtype, const Shape& shape) {
  return Tensor(reinterpret_cast<void*>(uintptr_t{4096}), dtype, shape);
}
Tensor f32(const Shape& shape) { return fake(DType::kF32, shape); }
Tensor bf16(const Shape& shape) { return fake(DType::kBF16, shape); }
Tensor i32(const Shape& shape) { return fake(DType::kI32, shape); }

class CheckArgumentsTest : public testing::Test {
 protected:
  CheckArgumentsTest() {
    table_.backend = "empty";
    context_.table = &table_;
  }

  template <class Args>
  std::string message(void (*op)(const Context&, const Args&), const Args& args) {
    try {
      op(context_, args);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  ops::Sequences sequences() const { return {offsets_, i32({3})}; }

  ops::OpTable table_;
  Context context_;
  std::vector<int32_t> offsets_ = {0, 2, 7};
};

TEST_F(CheckArgumentsTest, NamesBackendAndOpWhereASlotIsEmpty) {
  const ops::L2NormForward args = {f32({7, 2, 4}), f32({7, 2, 4}), f32({7, 2})};
  EXPECT_EQ(message(ops::l2_norm_forward, args),
            "l2_norm_forward: expected an implementation in backend empty, got none");
  EXPECT_THROW(ops::l2_norm_forward(context_, args), UnsupportedError);
  ops::GatedDeltaRuleForward delta;
  EXPECT_THROW(ops::gated_delta_rule_saved_bytes(context_, delta), UnsupportedError);
}

TEST_F(CheckArgumentsTest, NamesShapes) {
  EXPECT_EQ(message(ops::l2_norm_forward, {f32({7, 2, 4}), f32({7, 2, 4}), f32({6, 2})}),
            "l2_norm_forward: inv_norm_RH: expected [7, 2], got [6, 2]");
  EXPECT_EQ(message(ops::l2_norm_forward, {f32({7, 2}), f32({7, 2, 4}), f32({6, 2})}),
            "l2_norm_forward: x_RHK: expected [any, any, any], got [7, 2]");
  EXPECT_EQ(message(ops::l2_norm_forward, {f32({7, 2, 4}), Tensor(), f32({7, 2})}),
            "l2_norm_forward: y_RHK: expected [7, 2, 4], got no tensor");
  EXPECT_EQ(message(ops::l2_norm_forward, {Tensor(), Tensor(), Tensor()}),
            "l2_norm_forward: x_RHK: expected a tensor, got none");
  EXPECT_THROW(ops::l2_norm_forward(context_, {Tensor(), Tensor(), Tensor()}), ShapeError);
}

TEST_F(CheckArgumentsTest, NamesDtypes) {
  EXPECT_EQ(message(ops::l2_norm_forward, {bf16({7, 2, 4}), f32({7, 2, 4}), f32({7, 2})}),
            "l2_norm_forward: y_RHK: expected bf16, got f32");
  EXPECT_EQ(message(ops::l2_norm_forward, {bf16({7, 2, 4}), bf16({7, 2, 4}), bf16({7, 2})}),
            "l2_norm_forward: inv_norm_RH: expected f32, got bf16");
  EXPECT_EQ(message(ops::l2_norm_forward, {i32({7, 2, 4}), i32({7, 2, 4}), f32({7, 2})}),
            "l2_norm_forward: x_RHK: expected f64, f32 or bf16, got i32");
  const Tensor f64_x = fake(DType::kF64, {7, 2, 4});
  EXPECT_EQ(message(ops::l2_norm_forward, {f64_x, f64_x, f32({7, 2})}),
            "l2_norm_forward: inv_norm_RH: expected f64, got f32");
  EXPECT_EQ(message(ops::embedding_forward, {f32({7}), f32({9, 4}), f32({7, 4})}),
            "embedding_forward: ids_R: expected i32, got f32");
}

TEST_F(CheckArgumentsTest, NamesLayouts) {
  const Tensor wide = f32({7, 20});
  EXPECT_EQ(message(ops::l2_norm_forward,
                    {f32({7, 2, 4}), wide.columns(4, 12).split_last(2, 4), f32({7, 2})}),
            "l2_norm_forward: y_RHK: expected a contiguous tensor, got [7, 2, 4] with strides [20, "
            "4, 1]");
  // Rows of the input may be strided, its heads may not.
  EXPECT_EQ(message(ops::l2_norm_forward,
                    {wide.columns(4, 12).split_last(2, 4), f32({7, 2, 4}), f32({7, 2})}),
            "l2_norm_forward: expected an implementation in backend empty, got none");
  EXPECT_EQ(
      message(ops::l2_norm_forward, {f32({7, 2, 6}).columns(2, 6), f32({7, 2, 4}), f32({7, 2})}),
      "l2_norm_forward: x_RHK: expected packed rows, got [7, 2, 4] with strides [12, 6, 1]");
}

TEST_F(CheckArgumentsTest, NamesSequences) {
  const auto rotary = [this](const ops::Sequences& sequences) {
    ops::Rotary args;
    args.x_RHX = args.y_RHX = f32({7, 2, 4});
    args.sequences = sequences;
    return message(ops::rotary, args);
  };
  EXPECT_EQ(rotary(sequences()), "rotary: expected an implementation in backend empty, got none");
  offsets_ = {0, 2, 6};
  EXPECT_EQ(rotary(sequences()), "rotary: sequences.offsets: expected 0 to 7, got 0 to 6");
  offsets_ = {1, 2, 7};
  EXPECT_EQ(rotary(sequences()), "rotary: sequences.offsets: expected 0 to 7, got 1 to 7");
  offsets_ = {0, 7, 7};
  EXPECT_EQ(rotary(sequences()),
            "rotary: sequences.offsets: expected every sequence to have at least one row, got 0 in "
            "sequence 1");
  offsets_ = {0, 9, 7};
  EXPECT_EQ(rotary(sequences()),
            "rotary: sequences.offsets: expected every sequence to have at least one row, got -2 "
            "in sequence 1");
  offsets_ = {0};
  EXPECT_EQ(rotary(sequences()), "rotary: sequences.offsets: expected at least 2 entries, got 1");
  EXPECT_EQ(rotary({}), "rotary: sequences.offsets: expected at least 2 entries, got 0");
  offsets_ = {0, 2, 7};
  EXPECT_EQ(rotary({offsets_, Tensor()}),
            "rotary: sequences.device_offsets: expected [3], got no tensor");
  EXPECT_EQ(rotary({offsets_, i32({4})}),
            "rotary: sequences.device_offsets: expected [3], got [4]");
}

TEST_F(CheckArgumentsTest, MaxLengthIsThatOfTheLongestSequence) {
  EXPECT_EQ(sequences().max_length(), 5);
  offsets_ = {0, 9, 10, 12};
  EXPECT_EQ(sequences().max_length(), 9);
}

TEST_F(CheckArgumentsTest, DeltaRuleNamesHeadsAndDecays) {
  ops::GatedDeltaRuleForward args;
  args.q_RHK = args.k_RHK = f32({7, 2, 8});
  args.v_RGV = args.o_RGV = f32({7, 3, 4});
  args.g_RGK = f32({7, 3, 1});
  args.beta_RG = f32({7, 3});
  args.sequences = sequences();
  EXPECT_EQ(message(ops::gated_delta_rule_forward, args),
            "gated_delta_rule_forward: v_RGV: expected a multiple of 2 value heads, got 3");
  args.v_RGV = args.o_RGV = f32({7, 4, 4});
  args.g_RGK = f32({7, 4, 4});
  args.beta_RG = f32({7, 4});
  EXPECT_EQ(message(ops::gated_delta_rule_forward, args),
            "gated_delta_rule_forward: g_RGK: expected 1 or 8 decays per head, got 4");
  args.g_RGK = f32({7, 4, 8});
  args.initial_state_SGKV = f32({1, 4, 8, 4});
  EXPECT_EQ(
      message(ops::gated_delta_rule_forward, args),
      "gated_delta_rule_forward: initial_state_SGKV: expected [2, 4, 8, 4], got [1, 4, 8, 4]");
  args.initial_state_SGKV = f32({2, 4, 8, 4});
  table_.gated_delta_rule.saved_bytes = [](const Context&, const ops::GatedDeltaRuleForward&) {
    return int64_t{1000};
  };
  args.saved = fake(DType::kU8, {999});
  EXPECT_EQ(message(ops::gated_delta_rule_forward, args),
            "gated_delta_rule_forward: saved: expected 1000 bytes, got 999");
}

TEST_F(CheckArgumentsTest, OtherOpsNameWhatDoesNotFit) {
  ops::RmsNormForward norm;
  norm.x_RD = norm.y_RD = f32({7, 4});
  norm.weight_D = f32({4});
  norm.inv_rms_R = f32({7});
  norm.residual_RD = f32({7, 4});
  EXPECT_EQ(message(ops::rms_norm_forward, norm),
            "rms_norm_forward: sum_RD: expected [7, 4], got no tensor");
  norm.sum_RD = f32({7, 4});
  norm.residual_RD = Tensor();
  EXPECT_EQ(message(ops::rms_norm_forward, norm),
            "rms_norm_forward: sum_RD: expected no tensor without residual_RD, got [7, 4]");

  norm.x_RD = norm.y_RD = bf16({7, 4});
  norm.residual_RD = f32({7, 4});
  norm.sum_RD = bf16({7, 4});
  EXPECT_EQ(message(ops::rms_norm_forward, norm),
            "rms_norm_forward: sum_RD: expected f32, got bf16");
  norm.sum_RD = f32({7, 4});
  norm.x_RD = f32({7, 4});  // a branch is an activation
  EXPECT_EQ(message(ops::rms_norm_forward, norm), "rms_norm_forward: x_RD: expected bf16, got f32");
  norm.y_RD = f32({7, 4});
  norm.residual_RD = norm.sum_RD = bf16({7, 4});
  EXPECT_EQ(message(ops::rms_norm_forward, norm),
            "rms_norm_forward: residual_RD: expected f32, got bf16");
  ops::RmsNormBackward norm_back;
  norm_back.dy_RD = norm_back.dx_rounded_RD = bf16({7, 4});
  norm_back.sum_RD = norm_back.dx_RD = f32({7, 4});
  norm_back.dsum_RD = bf16({7, 4});
  norm_back.weight_D = norm_back.dweight_D = f32({4});
  norm_back.inv_rms_R = f32({7});
  EXPECT_EQ(message(ops::rms_norm_backward, norm_back),
            "rms_norm_backward: dsum_RD: expected f32, got bf16");
  norm_back.dsum_RD = Tensor();
  norm_back.dx_rounded_RD = f32({7, 4});
  EXPECT_EQ(message(ops::rms_norm_backward, norm_back),
            "rms_norm_backward: dx_rounded_RD: expected bf16, got f32");

  ops::ShortConvForward conv;
  conv.x_RX = conv.y_RX = f32({7, 4});
  conv.weight_XW = f32({4, 9});
  conv.sequences = sequences();
  EXPECT_EQ(message(ops::short_conv_forward, conv),
            "short_conv_forward: weight_XW: expected 1 to 8 taps, got 9");
  conv.weight_XW = f32({4, 4});
  EXPECT_EQ(message(ops::short_conv_forward, conv),
            "short_conv_forward: y_RX: expected other memory than x_RX, got the same");

  ops::DeltaGateForward gate;
  gate.a_RGK = f32({7, 2, 1});
  gate.b_RG = gate.beta_RG = f32({7, 2});
  gate.A_log_G = f32({2});
  gate.dt_bias_GK = f32({2, 1});
  gate.g_RGK = f32({7, 2, 1});
  gate.form = ops::DecayForm::kBounded;
  EXPECT_EQ(message(ops::delta_gate_forward, gate),
            "delta_gate_forward: lower_bound: expected a number below 0, got 0.000000");

  EXPECT_EQ(message(ops::swiglu_forward, {f32({7, 5}), f32({7, 2})}),
            "swiglu_forward: gate_up_RX: expected an even number of channels, got 5");
  EXPECT_EQ(
      message(ops::linear_swiglu_forward, {f32({7, 4}), f32({5, 4}), f32({7, 5}), f32({7, 2})}),
      "linear_swiglu_forward: weight_XD: expected an even number of rows, got 5");
  EXPECT_EQ(
      message(ops::linear_swiglu_backward, {f32({7, 4}), f32({4, 3}), f32({7, 6}), f32({7, 3})}),
      "linear_swiglu_backward: dgate_up_RX: expected [7, 6], got [7, 3]");
  EXPECT_EQ(message(ops::convert, {f32({7, 5}), bf16({34})}),
            "convert: y: expected 35 elements, got 34");
  EXPECT_EQ(message(ops::sum_to, {f32({7}), nullptr}),
            "sum_to: result: expected an address, got none");
  EXPECT_EQ(message(ops::sum_of_squares, {bf16({7}), nullptr}),
            "sum_of_squares: gradient_X: expected f32 or f64, got bf16");

  ops::LinearForward linear = {f32({7, 4}), f32({3, 5}), Tensor(), f32({7, 3})};
  EXPECT_EQ(message(ops::linear_forward, linear),
            "linear_forward: weight_XD: expected [any, 4], got [3, 5]");
  linear = {bf16({7, 4}), bf16({3, 4}), Tensor(), fake(DType::kI32, {7, 3})};
  EXPECT_EQ(message(ops::linear_forward, linear), "linear_forward: y_RX: expected bf16, got i32");
  ops::LinearBackward back;
  back.dy_RX = f32({7, 3});
  back.dx_RD = f32({7, 4});
  EXPECT_EQ(message(ops::linear_backward, back),
            "linear_backward: weight_XD: expected [3, any], got no tensor");
}

}  // namespace

}  // namespace deltatrain::test
