#include "backend/cuda/large_cases.h"

#include <cmath>

#include "backend/cuda/device_random.h"
#include "backend/cuda/huge_cases.h"
#include "ops/causal_attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"
#include "ops/swiglu.h"
#include "verify/op_trial.h"

namespace deltatrain::test {

using namespace verify;  // NOLINT(google-build-using-namespace): the vocabulary of a case

namespace {

constexpr DType kBf16 = DType::kBF16;

void attention_case(const Context& tested, const Context& reference, const std::vector<int32_t>& offsets, int64_t H,
                    int64_t K, int64_t V, std::vector<OpCaseResult>& results) {
  const int64_t R = offsets.back();
  const std::string name = "R=" + std::to_string(R) + " H=" + std::to_string(H) + " K=" + std::to_string(K) +
                           " V=" + std::to_string(V) + " sequences=" + std::to_string(offsets.size() - 1);
  const double scale = 1 / std::sqrt(static_cast<double>(K));
  OpTrial trial(tested, reference, "causal_attention_forward", name, results);
  const Argument& q = trial.activation("q_RHK", {R, H, K});
  const Argument& k = trial.activation("k_RHK", {R, H, K});
  const Argument& v = trial.activation("v_RHV", {R, H, V}, normal(), Placement::kStridedHeads);
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument& o = trial.activation_output("o_RHV", {R, H, V}, Quantity::kAttention);
  const Argument& lse = trial.statistic_output("lse_RH", {R, H}, Quantity::kStatistic);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::CausalAttentionForward args;
    args.q_RHK = pick(q);
    args.k_RHK = pick(k);
    args.v_RHV = pick(v);
    args.sequences = pick(sequences);
    args.o_RHV = pick(o);
    args.lse_RH = pick(lse);
    args.scale = scale;
    ops::causal_attention_forward(context, args);
  });
  OpTrial back(tested, reference, "causal_attention_backward", name, results);
  const Argument& d_o = back.activation("do_RHV", {R, H, V});
  const Argument& q2 = back.activation("q_RHK", {R, H, K}, trial.values(q));
  const Argument& k2 = back.activation("k_RHK", {R, H, K}, trial.values(k));
  const Argument& v2 = back.activation("v_RHV", {R, H, V}, trial.values(v), Placement::kStridedHeads);
  const Argument& o2 = back.activation("o_RHV", {R, H, V}, trial.values(o));
  const Argument& lse2 = back.statistic("lse_RH", {R, H}, trial.values(lse));
  const SequenceArgument& sequences2 = back.sequences(offsets);
  const Argument& dq = back.activation_output("dq_RHK", {R, H, K}, Quantity::kAttention);
  const Argument& dk = back.activation_output("dk_RHK", {R, H, K}, Quantity::kAttention);
  const Argument& dv = back.activation_output("dv_RHV", {R, H, V}, Quantity::kAttention, Placement::kStridedHeads);
  back.run([&](const Context& context, const Pick& pick) {
    ops::causal_attention_backward(context, {pick(d_o), pick(q2), pick(k2), pick(v2), pick(o2), pick(lse2),
                                             pick(sequences2), pick(dq), pick(dk), pick(dv), scale});
  });
}

void short_conv_case(const Context& tested, const Context& reference, const std::vector<int32_t>& offsets, int64_t X,
                     std::vector<OpCaseResult>& results) {
  const int64_t R = offsets.back();
  const std::string name = "R=" + std::to_string(R) + " X=" + std::to_string(X) + " sequences=" + std::to_string(offsets.size() - 1);
  {
    OpTrial trial(tested, reference, "short_conv_forward", name, results);
    const Argument& x = trial.activation("x_RX", {R, X}, normal(), Placement::kStridedRows);
    const Argument& weight = trial.statistic("weight_XW", {X, 4});
    const SequenceArgument& sequences = trial.sequences(offsets);
    const Argument& y = trial.activation_output("y_RX", {R, X}, Quantity::kNorm);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::short_conv_forward(context, {pick(x), pick(weight), pick(sequences), Tensor(), Tensor(), pick(y)});
    });
  }
  OpTrial trial(tested, reference, "short_conv_backward", name, results);
  const Argument& dy = trial.activation("dy_RX", {R, X});
  const Argument& x = trial.activation("x_RX", {R, X}, normal(), Placement::kStridedRows);
  const Argument& weight = trial.statistic("weight_XW", {X, 4});
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument& dx = trial.activation_output("dx_RX", {R, X}, Quantity::kNorm, Placement::kStridedRows);
  const Argument& dweight = trial.accumulated("dweight_XW", {X, 4});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::short_conv_backward(context, {pick(dy), pick(x), pick(weight), pick(sequences), pick(dx), pick(dweight)});
  });
}

// Frequent tokens, so that stretches of equal ids reach over several chunks.
void embedding_case(const Context& tested, const Context& reference, std::vector<OpCaseResult>& results) {
  constexpr int64_t R = 20000;
  constexpr int64_t N = 3000;
  constexpr int64_t D = 64;
  std::vector<int32_t> ids;
  const RandomStream stream(11, "ids");
  for (uint64_t r = 0; r < R; ++r) ids.push_back(static_cast<int32_t>(N * std::pow(stream.uniform(r), 6.0)));
  OpTrial trial(tested, reference, "embedding_backward", "R=20000 N=3000 D=64, frequent tokens", results);
  const Argument& ids_R = trial.integers("ids_R", ids);
  const Argument& dy = trial.activation("dy_RD", {R, D});
  const Argument& dweight = trial.accumulated("dweight_ND", {N, D});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::embedding_backward(context, {pick(ids_R), pick(dy), pick(dweight)});
  });
}

void rms_norm_case(const Context& tested, const Context& reference, int64_t D, std::vector<OpCaseResult>& results) {
  constexpr int64_t R = 1500;
  const std::string name = "R=1500 D=" + std::to_string(D);
  OpTrial trial(tested, reference, "rms_norm_forward", name, results);
  const Argument& x = trial.activation("x_RD", {R, D}, normal(), Placement::kStridedRows);
  const Argument& weight = trial.statistic("weight_D", {D});
  const Argument& y = trial.activation_output("y_RD", {R, D}, Quantity::kNorm);
  const Argument& inv_rms = trial.statistic_output("inv_rms_R", {R}, Quantity::kStatistic);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::rms_norm_forward(context, {pick(x), Tensor(), pick(weight), Tensor(), pick(y), pick(inv_rms), 1e-6});
  });
  OpTrial back(tested, reference, "rms_norm_backward", name, results);
  const Argument& dy = back.activation("dy_RD", {R, D});
  const Argument& s = back.activation("sum_RD", {R, D}, trial.values(x), Placement::kStridedRows);
  const Argument& w = back.statistic("weight_D", {D}, trial.values(weight));
  const Argument& inv = back.statistic("inv_rms_R", {R}, trial.values(inv_rms));
  const Argument& dsum = back.activation("dsum_RD", {R, D}, normal(), Placement::kStridedRows);
  const Argument& dx = back.activation_output("dx_RD", {R, D}, Quantity::kNorm);
  const Argument& dweight = back.accumulated("dweight_D", {D});
  back.run([&](const Context& context, const Pick& pick) {
    ops::rms_norm_backward(context, {pick(dy), pick(s), pick(w), pick(inv), pick(dsum), pick(dx), pick(dweight)});
  });
}

// Products above the search's threshold, so that the choice of an algorithm itself is seen to leave results right.
void linear_case(const Context& tested, const Context& reference, std::vector<OpCaseResult>& results) {
  constexpr int64_t R = 2104;
  constexpr int64_t D = 512;
  constexpr int64_t X = 936;
  const std::string name = "R=2104 D=512 X=936, accumulate";
  std::vector<double> start(static_cast<size_t>(R * X));
  const RandomStream stream(1, "y");
  for (size_t i = 0; i < start.size(); ++i) start[i] = stream.normal(i);
  {
    OpTrial trial(tested, reference, "linear_forward", name, results);
    const Argument& x = trial.activation("x_RD", {R, D}, normal(), Placement::kStridedRows);
    const Argument& weight = trial.activation("weight_XD", {X, D}, normal(1 / std::sqrt(static_cast<double>(D))));
    const Argument& y = trial.argument("y_RX", Role::kInOut, trial.activation_dtype(), {R, X}, Quantity::kProduct, start);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::linear_forward(context, {pick(x), pick(weight), Tensor(), pick(y), ops::GradMode::kAccumulate});
    });
  }
  OpTrial trial(tested, reference, "linear_backward", name, results);
  const Argument& dy = trial.activation("dy_RX", {R, X});
  const Argument& x = trial.activation("x_RD", {R, D}, normal(), Placement::kStridedRows);
  const Argument& weight = trial.activation("weight_XD", {X, D}, normal(1 / std::sqrt(static_cast<double>(X))));
  const Argument& dx = trial.activation_output("dx_RD", {R, D}, Quantity::kProduct);
  const Argument& dweight = trial.accumulated("dweight_XD", {X, D});
  const Argument& dbias = trial.accumulated("dbias_X", {X});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::linear_backward(context, {pick(dy), pick(x), pick(weight), pick(dx), pick(dweight), pick(dbias)});
  });
}

void huge_swiglu(HugeCases& cases) {
  constexpr int64_t R = 262145;
  constexpr int64_t F = 4096;
  constexpr int64_t kLast = 10;
  const Tensor gate_up = cases.random({R, 2 * F});
  const Tensor dy = cases.random({R, F});
  const Tensor y = cases.make(kBf16, {R, F});
  const Tensor few_gate_up = cases.copy(gate_up.rows(R - kLast, R));
  const Tensor few_y = cases.make(kBf16, {kLast, F});
  ops::swiglu_forward(cases.context(), {gate_up, y});
  ops::swiglu_forward(cases.context(), {few_gate_up, few_y});
  const std::string name = "R=262145 F=4096";
  cases.expect_same("swiglu_forward", name, "y_RF", y.rows(R - kLast, R), few_y);
  ops::swiglu_backward(cases.context(), {dy, gate_up, gate_up, y});
  ops::swiglu_backward(cases.context(), {dy.rows(R - kLast, R), few_gate_up, few_gate_up, few_y});
  cases.expect_same("swiglu_backward", name, "dgate_up_RX", gate_up.rows(R - kLast, R), few_gate_up);
  cases.expect_same("swiglu_backward", name, "y_RF", y.rows(R - kLast, R), few_y);
  cases.end_case();
}

void huge_cross_entropy(HugeCases& cases) {
  constexpr int64_t R = 17000;
  constexpr int64_t N = 128256;
  constexpr int64_t kLast = 10;
  const Tensor logits = cases.random({R, N});
  const Tensor labels = cases.make(DType::kI32, {R});
  fill_ids(cases.context(), labels, N, 1, 5);
  const Tensor loss = cases.make(DType::kF32, {R});
  const Tensor few = cases.copy(logits.rows(R - kLast, R));
  const Tensor few_loss = cases.make(DType::kF32, {kLast});
  ops::cross_entropy(cases.context(), {logits, labels, loss, Tensor(), 1.0 / 1024, ops::CrossEntropy::Gradient::kWrite});
  ops::cross_entropy(cases.context(), {few, labels.rows(R - kLast, R), few_loss, Tensor(), 1.0 / 1024,
                                       ops::CrossEntropy::Gradient::kWrite});
  const std::string name = "R=17000 N=128256";
  cases.expect_same("cross_entropy", name, "logits_RN", logits.rows(R - kLast, R), few);
  cases.expect_same("cross_entropy", name, "loss_R", loss.rows(R - kLast, R), few_loss);
  cases.end_case();
}

void huge_rms_norm(HugeCases& cases) {
  constexpr int64_t R = 1100000;
  constexpr int64_t D = 2048;
  constexpr int64_t kLast = 10;
  const Tensor x = cases.random({R, D});
  const Tensor weight = cases.make(DType::kF32, {D});
  fill_uniform(cases.context(), weight, 0.5, 1.5, 9);
  const Tensor y = cases.make(kBf16, {R, D});
  const Tensor inv_rms = cases.make(DType::kF32, {R});
  const Tensor few_y = cases.make(kBf16, {kLast, D});
  const Tensor few_inv_rms = cases.make(DType::kF32, {kLast});
  ops::rms_norm_forward(cases.context(), {x, Tensor(), weight, Tensor(), y, inv_rms, 1e-6});
  ops::rms_norm_forward(cases.context(), {x.rows(R - kLast, R), Tensor(), weight, Tensor(), few_y, few_inv_rms, 1e-6});
  cases.expect_same("rms_norm_forward", "R=1100000 D=2048", "y_RD", y.rows(R - kLast, R), few_y);
  ops::add(cases.context(), {x, y, y});
  ops::add(cases.context(), {x.rows(R - kLast, R), few_y, few_y});
  cases.expect_same("add", "R=1100000 D=2048", "y_RD", y.rows(R - kLast, R), few_y);
  cases.end_case();
}

// A product whose output has more than 2^31 elements, both ways. Fewer rows may take another algorithm, with sums in
// another order: rows around 2^31 elements and the last ones are compared as products are, and the gradient of the
// weight with the sum of two halves.
void huge_linear(HugeCases& cases, int64_t R, int64_t D, int64_t X, bool is_head) {
  constexpr int64_t kFew = 10;
  const std::string name = "R=" + std::to_string(R) + " D=" + std::to_string(D) + " X=" + std::to_string(X);
  const Tensor x = cases.random({R, D});
  const Tensor weight = cases.random({X, D});
  const Tensor y = cases.make(kBf16, {R, X});
  const Tensor few_y = cases.make(kBf16, {kFew, X});
  const Tensor dx = cases.make(kBf16, {R, D});
  const Tensor few_dx = cases.make(kBf16, {kFew, D});
  const Tensor dweight = cases.make(DType::kF32, {X, D});
  const Tensor halves = cases.make(DType::kF32, {X, D});
  for (const Tensor& tensor : {y, dx, dweight, halves}) cases.clear(tensor);
  ops::linear_forward(cases.context(), {x, weight, Tensor(), y});
  ops::linear_backward(cases.context(), {y, x, weight, dx, dweight, Tensor()});
  ops::linear_backward(cases.context(),
                       {y.rows(0, R / 2), x.rows(0, R / 2), weight, Tensor(), halves, Tensor()});
  ops::linear_backward(cases.context(),
                       {y.rows(R / 2, R), x.rows(R / 2, R), weight, Tensor(), halves, Tensor()});
  const int64_t border = (int64_t{1} << 31) / X;
  for (const int64_t begin : {border - kFew / 2, R - kFew}) {
    const std::string rows = " of row " + std::to_string(begin) + " on";
    const Tensor part = y.rows(begin, begin + kFew);
    ops::linear_forward(cases.context(), {x.rows(begin, begin + kFew), weight, Tensor(), few_y});
    cases.expect_close("linear_forward", name, "y_RX" + rows, part, few_y, Quantity::kProduct);
    ops::linear_backward(cases.context(),
                         {part, x.rows(begin, begin + kFew), weight, few_dx, Tensor(), Tensor()});
    cases.expect_close("linear_backward", name, "dx_RD" + rows, dx.rows(begin, begin + kFew), few_dx,
                       Quantity::kProduct);
  }
  cases.expect_close("linear_backward", name, "dweight_XD", dweight, halves, Quantity::kWeightGradient);
  if (is_head) {
    const Tensor labels = cases.make(DType::kI32, {R});
    fill_ids(cases.context(), labels, X, 1, 5);
    const Tensor loss = cases.make(DType::kF32, {R});
    const Tensor few_loss = cases.make(DType::kF32, {kFew});
    const Tensor few = cases.copy(y.rows(R - kFew, R));
    const auto write = ops::CrossEntropy::Gradient::kWrite;
    ops::cross_entropy(cases.context(), {y, labels, loss, Tensor(), 1.0 / 1024, write});
    ops::cross_entropy(cases.context(), {few, labels.rows(R - kFew, R), few_loss, Tensor(), 1.0 / 1024, write});
    cases.expect_same("cross_entropy", name, "logits_RN", y.rows(R - kFew, R), few);
    cases.expect_same("cross_entropy", name, "loss_R", loss.rows(R - kFew, R), few_loss);
  }
  cases.end_case();
}

}  // namespace

std::vector<OpCaseResult> run_long_cases(const Context& tested, const Context& reference, const std::string& only_op) {
  std::vector<OpCaseResult> results;
  const auto wanted = [&](const char* op) { return only_op.empty() || only_op == op; };
  if (wanted("causal_attention")) {
    attention_case(tested, reference, {0, 1024, 2048}, 3, 64, 64, results);
    attention_case(tested, reference, {0, 3, 130, 131, 777, 1100, 1163}, 2, 64, 64, results);
    attention_case(tested, reference, {0, 65, 700}, 2, 96, 128, results);
    attention_case(tested, reference, {0, 400, 401}, 2, 48, 32, results);
    if (tested.activation_dtype == kBf16) attention_case(tested, reference, {0, 390}, 100, 64, 64, results);
  }
  if (wanted("short_conv")) {
    short_conv_case(tested, reference, {0, 2048, 4096}, 1024, results);
    std::vector<int32_t> offsets = {0};
    const RandomStream stream(3, "lengths");
    while (offsets.back() < 20000) {
      offsets.push_back(offsets.back() + 1 + static_cast<int32_t>(stream.below(offsets.size(), 60)));
    }
    short_conv_case(tested, reference, offsets, 64, results);
  }
  if (wanted("embedding")) embedding_case(tested, reference, results);
  if (wanted("rms_norm")) {
    for (const int64_t D : {64, 672, 1024, 2048, 4096}) rms_norm_case(tested, reference, D, results);
  }
  // Half a minute of the reference's loops would teach nothing more in f32.
  if (wanted("linear") && tested.activation_dtype == kBf16) linear_case(tested, reference, results);
  return results;
}

std::vector<OpCaseResult> run_huge_cases(backend::Backend& backend, const std::string& only_op) {
  HugeCases cases(backend);
  const auto wanted = [&](const char* op) { return only_op.empty() || only_op == op; };
  if (wanted("swiglu")) huge_swiglu(cases);
  if (wanted("cross_entropy")) huge_cross_entropy(cases);
  if (wanted("rms_norm")) huge_rms_norm(cases);
  if (wanted("linear")) {
    huge_linear(cases, 300000, 1024, 8192, false);   // gate and up
    huge_linear(cases, 262144, 1024, 128256, true);  // the head, and the loss over its logits
  }
  return cases.results;
}

}  // namespace deltatrain::test
