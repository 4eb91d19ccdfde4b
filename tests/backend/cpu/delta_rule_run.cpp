#include "backend/cpu/delta_rule_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/gated_delta_rule.h"

namespace deltatrain::test {

namespace {

// A tensor of `dtype` with an array's values, kept alive with its memory.
class DeviceArray {
 public:
  DeviceArray(DType dtype, const Shape& shape)
      : buffer_(host_memory(), static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype))),
        tensor_(buffer_.tensor(dtype, shape)) {}
  DeviceArray(DType dtype, const Array& array) : DeviceArray(dtype, array.shape) {
    for (size_t i = 0; i < array.values.size(); ++i) {
      if (dtype == DType::kF32) {
        tensor_.data<float>()[i] = static_cast<float>(array.values[i]);
      } else {
        tensor_.data<double>()[i] = array.values[i];
      }
    }
  }
  const Tensor& tensor() const { return tensor_; }
  Array array() const {
    Array result(tensor_.shape());
    for (size_t i = 0; i < result.values.size(); ++i) {
      result.values[i] = tensor_.dtype() == DType::kF32
                             ? static_cast<double>(tensor_.data<float>()[i])
                             : tensor_.data<double>()[i];
    }
    return result;
  }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

void normalise_rows(Array& array) {
  const int64_t width = array.shape[array.shape.rank() - 1];
  for (size_t row = 0; row < array.values.size(); row += static_cast<size_t>(width)) {
    double sum = 1e-6;
    for (int64_t i = 0; i < width; ++i)
      sum += std::pow(array.values[row + static_cast<size_t>(i)], 2);
    for (int64_t i = 0; i < width; ++i)
      array.values[row + static_cast<size_t>(i)] /= std::sqrt(sum);
  }
}

void round_to_f32(Array& array) {
  for (double& value : array.values) value = static_cast<double>(static_cast<float>(value));
}

}  // namespace

DeltaProblem make_delta_problem(const DeltaOptions& options) {
  DeltaProblem p;
  p.offsets = {0};
  for (const int64_t length : options.lengths)
    p.offsets.push_back(p.offsets.back() + static_cast<int32_t>(length));
  const int64_t R = p.offsets.back(), S = p.num_sequences(), H = options.H, G = options.G,
                K = options.K, V = options.V;
  const uint64_t seed = options.seed * 100;
  p.q = normal({R, H, K}, seed + 1);
  p.k = normal({R, H, K}, seed + 2);
  normalise_rows(p.q);
  normalise_rows(p.k);
  p.v = normal({R, G, V}, seed + 3);
  p.g = normal({R, G, options.per_channel ? K : 1}, seed + 4, options.log_gate);
  for (double& g : p.g.values) g = -std::abs(g);
  p.beta = normal({R, G}, seed + 5);
  for (double& beta : p.beta.values) beta = 1 / (1 + std::exp(-beta));
  p.d_out = normal({R, G, V}, seed + 6);
  if (options.states) {
    p.initial_state = normal({S, G, K, V}, seed + 7, 0.3);
    p.d_final_state = normal({S, G, K, V}, seed + 8, 0.3);
    round_to_f32(*p.initial_state);
    round_to_f32(*p.d_final_state);
  }
  p.scale = 1 / std::sqrt(static_cast<double>(K));
  for (Array* array : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.d_out}) round_to_f32(*array);
  return p;
}

DeltaRunner::DeltaRunner(DeviceKind kind, DType dtype)
    : backend_(backend::make_backend(kind)),
      arena_(host_memory(), size_t{64} << 20),
      dtype_(dtype) {}

DeltaResult DeltaRunner::run(const DeltaProblem& problem, bool gradients) {
  const DType dtype = dtype_;
  const Shape states = {problem.num_sequences(), problem.v.shape[1], problem.q.shape[2],
                        problem.v.shape[2]};
  const DeviceArray q(dtype, problem.q), k(dtype, problem.k), v(dtype, problem.v),
      g(dtype, problem.g);
  const DeviceArray beta(dtype, problem.beta), d_out(dtype, problem.d_out);
  const DeviceArray initial(dtype, problem.initial_state.value_or(Array(states)));
  const DeviceArray d_final(dtype, problem.d_final_state.value_or(Array(states)));
  const DeviceArray o(dtype, poisoned(problem.v.shape)), final_state(dtype, poisoned(states));
  std::vector<int32_t> offsets = problem.offsets;
  const ops::Sequences sequences = {
      offsets, Tensor(offsets.data(), DType::kI32, {static_cast<int64_t>(offsets.size())})};
  const Arena::SaveScope scope(arena_);
  const Context context = backend_->context(arena_, dtype);

  ops::GatedDeltaRuleForward forward;
  forward.q_RHK = q.tensor();
  forward.k_RHK = k.tensor();
  forward.v_RGV = v.tensor();
  forward.g_RGK = g.tensor();
  forward.beta_RG = beta.tensor();
  forward.sequences = sequences;
  if (problem.initial_state) forward.initial_state_SGKV = initial.tensor();
  forward.final_state_SGKV = final_state.tensor();
  forward.o_RGV = o.tensor();
  forward.scale = problem.scale;
  if (gradients)
    forward.saved = arena_.save(DType::kU8, {ops::gated_delta_rule_saved_bytes(context, forward)});
  ops::gated_delta_rule_forward(context, forward);
  DeltaResult result;
  result.o = o.array();
  result.final_state = final_state.array();
  if (!gradients) return result;

  const DeviceArray dq(dtype, poisoned(problem.q.shape)), dk(dtype, poisoned(problem.q.shape));
  const DeviceArray dv(dtype, poisoned(problem.v.shape)), dg(dtype, poisoned(problem.g.shape));
  const DeviceArray dbeta(dtype, poisoned(problem.beta.shape)), d_initial(dtype, poisoned(states));
  ops::GatedDeltaRuleBackward backward;
  backward.do_RGV = d_out.tensor();
  if (problem.d_final_state) backward.d_final_state_SGKV = d_final.tensor();
  backward.q_RHK = q.tensor();
  backward.k_RHK = k.tensor();
  backward.v_RGV = v.tensor();
  backward.g_RGK = g.tensor();
  backward.beta_RG = beta.tensor();
  backward.sequences = sequences;
  if (problem.initial_state) backward.initial_state_SGKV = initial.tensor();
  backward.saved = forward.saved;
  backward.dq_RHK = dq.tensor();
  backward.dk_RHK = dk.tensor();
  backward.dv_RGV = dv.tensor();
  backward.dg_RGK = dg.tensor();
  backward.dbeta_RG = dbeta.tensor();
  if (problem.initial_state) backward.d_initial_state_SGKV = d_initial.tensor();
  backward.scale = problem.scale;
  ops::gated_delta_rule_backward(context, backward);
  result.dq = dq.array();
  result.dk = dk.array();
  result.dv = dv.array();
  result.dg = dg.array();
  result.dbeta = dbeta.array();
  if (problem.initial_state) result.d_initial_state = d_initial.array();
  return result;
}

namespace {
constexpr std::pair<const char*, Array DeltaResult::*> kResults[] = {
    {"o", &DeltaResult::o},         {"final_state", &DeltaResult::final_state},
    {"dq", &DeltaResult::dq},       {"dk", &DeltaResult::dk},
    {"dv", &DeltaResult::dv},       {"dg", &DeltaResult::dg},
    {"dbeta", &DeltaResult::dbeta}, {"d_initial_state", &DeltaResult::d_initial_state}};

// Where nothing of `want` is within the range of f32, zeros are the answer.
double f32_error(const Array& got, const Array& want) {
  const bool vanishes = std::all_of(want.values.begin(), want.values.end(),
                                    [](double value) { return std::abs(value) < 1e-38; });
  return vanishes ? relative_error(got, Array(want.shape)) : relative_error(got, want);
}

}  // namespace

void expect_near(const DeltaResult& got, const DeltaResult& want, double bound,
                 const std::string& what) {
  for (const auto& [name, member] : kResults) {
    if ((want.*member).values.empty()) continue;
    ASSERT_EQ((got.*member).shape, (want.*member).shape) << name << ", " << what;
    EXPECT_LE(f32_error(got.*member, want.*member), bound) << name << ", " << what;
  }
}

double worst_error(const DeltaResult& got, const DeltaResult& want) {
  double worst = 0;
  for (const auto& [name, member] : kResults) {
    if (!(want.*member).values.empty())
      worst = std::max(worst, f32_error(got.*member, want.*member));
  }
  return worst;
}

}  // namespace deltatrain::test
