#include "backend/cuda/many_sequences.h"

#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "backend/cuda/device_random.h"
#include "backend/cuda/huge_cases.h"
#include "base/random.h"
#include "ops/causal_attention.h"
#include "ops/delta_gate.h"
#include "ops/delta_step.h"
#include "ops/gated_delta_rule.h"
#include "ops/gated_rms_norm.h"
#include "ops/rotary.h"
#include "ops/short_conv.h"
#include "ops/short_conv_norm.h"

namespace deltatrain::test {

using verify::OpCaseResult;
using verify::Quantity;

namespace {

constexpr int64_t T = 16, H = 8, W = 4;
// At most half of it is scratch of an op: a state of 64 x 64 in bf16 for each of 65,536 chunks.
constexpr size_t kArenaBytes = size_t{1} << 30, kHostArenaBytes = size_t{64} << 20;

bool is_cuda(backend::Backend& backend) { return backend.device().kind() == DeviceKind::kCuda; }

// Some of the sequences, and a tensor's share of them.
struct Part {
  int64_t begin = 0, end = 0;

  Tensor rows(const Tensor& x) const { return x.rows(begin * T, end * T); }
  Tensor states(const Tensor& x) const { return x.rows(begin, end); }
};

class ManySequences {
 public:
  ManySequences(backend::Backend& backend, DType dtype, int64_t num_sequences)
      : cases_(backend, dtype, is_cuda(backend) ? kArenaBytes : kHostArenaBytes),
        backend_(backend),
        num_(num_sequences),
        name_(std::to_string(num_sequences) + " sequences of 16, 8 heads") {
    for (int64_t s = 0; s <= num_; ++s) {
      offsets_.push_back(static_cast<int32_t>(s * T));
      step_offsets_.push_back(static_cast<int32_t>(s));
    }
    device_offsets_ = upload(offsets_);
    device_step_offsets_ = upload(step_offsets_);
  }

  int64_t num() const { return num_; }
  int64_t num_rows() const { return num_ * T; }
  const Context& context() const { return cases_.context(); }
  DType activation() const { return context().activation_dtype; }
  DType statistic() const { return context().statistics_dtype(); }
  std::vector<OpCaseResult> results() { return std::move(cases_.results); }

  ops::Sequences sequences(const Part& part) const { return of_a_part(offsets_, device_offsets_, part); }
  // The same sequences of one row each.
  ops::Sequences steps(const Part& part) const { return of_a_part(step_offsets_, device_step_offsets_, part); }

  Tensor normal(DType dtype, const Shape& shape, double deviation) {
    const Tensor tensor = cases_.make(dtype, shape);
    if (is_cuda(backend_)) {
      fill_normal(context(), tensor, deviation, ++seed_);
    } else {
      const RandomStream stream(++seed_, "normal");
      fill_on_host(tensor, [&](uint64_t i) { return deviation * stream.normal(i); });
    }
    return tensor;
  }
  // f32 in [low, high).
  Tensor uniform(const Shape& shape, double low, double high) {
    const Tensor tensor = cases_.make(statistic(), shape);
    if (is_cuda(backend_)) {
      fill_uniform(context(), tensor, low, high, ++seed_);
    } else {
      const RandomStream stream(++seed_, "uniform");
      fill_on_host(tensor, [&](uint64_t i) { return low + (high - low) * stream.uniform(i); });
    }
    return tensor;
  }
  Tensor zeros(DType dtype, const Shape& shape) {
    const Tensor tensor = cases_.make(dtype, shape);
    cases_.clear(tensor);
    return tensor;
  }
  Tensor integers(const std::vector<int32_t>& values) {
    const Tensor tensor = cases_.make(DType::kI32, {static_cast<int64_t>(values.size())});
    backend_.device().copy_to_device(tensor.raw(), values.data(), values.size() * sizeof(int32_t));
    return tensor;
  }
  Buffer scratch(int64_t bytes) { return {backend_.device().memory(), static_cast<size_t>(bytes)}; }

  struct Output {
    std::string name;
    DType dtype;
    Shape shape;        // of all sequences
    bool is_of_rows;    // else its first axis is that of sequences
    Tensor start = {};  // what it holds before the call; none: noise before the whole, zeros before a half
  };
  struct Sum {  // over all rows, added to what is there
    std::string name;
    Shape shape;
  };
  using Call = std::function<void(const Part& part, const std::vector<Tensor>& outputs, const std::vector<Tensor>& sums)>;

  // Calls once for all sequences and once for either half.
  void compare(const std::string& op, const std::vector<Output>& outputs, const std::vector<Sum>& sums, const Call& call) {
    std::vector<Tensor> whole, whole_sums, half_sums;
    for (const Output& output : outputs) {
      whole.push_back(normal(output.dtype, output.shape, 1));
      if (output.start.defined()) copy(whole.back(), output.start);
    }
    for (const Sum& sum : sums) {
      whole_sums.push_back(zeros(statistic(), sum.shape));
      half_sums.push_back(zeros(statistic(), sum.shape));
    }
    call({0, num_}, whole, whole_sums);
    for (const Part& part : {Part{0, num_ / 2}, Part{num_ / 2, num_}}) {
      std::vector<Tensor> half;
      for (const Output& output : outputs) {
        half.push_back(zeros(output.dtype, share(part, output, whole[half.size()]).shape()));
        if (output.start.defined()) copy(half.back(), share(part, output, output.start));
      }
      call(part, half, half_sums);
      for (size_t i = 0; i < outputs.size(); ++i) {
        cases_.expect_same(op, name_, outputs[i].name + (part.begin == 0 ? ", first half" : ", second half"),
                           share(part, outputs[i], whole[i]), half[i]);
      }
    }
    for (size_t i = 0; i < sums.size(); ++i)
      cases_.expect_close(op, name_, sums[i].name, whole_sums[i], half_sums[i], Quantity::kWeightGradient);
  }

  void end_case() { cases_.end_case(); }

 private:
  Buffer upload(const std::vector<int32_t>& numbers) const {
    Buffer block(backend_.device().memory(), numbers.size() * sizeof(int32_t));
    backend_.device().copy_to_device(block.data(), numbers.data(), block.num_bytes());
    return block;
  }
  // A part begins at row 0 of its own tensors, so its offsets are the first ones of all.
  static ops::Sequences of_a_part(const std::vector<int32_t>& offsets, const Buffer& device_offsets, const Part& part) {
    const int64_t count = part.end - part.begin + 1;
    return {.offsets = std::span(offsets).first(static_cast<size_t>(count)),
            .device_offsets = device_offsets.tensor(DType::kI32, {count})};
  }
  static Tensor share(const Part& part, const Output& output, const Tensor& x) {
    return output.is_of_rows ? part.rows(x) : part.states(x);
  }
  void copy(const Tensor& to, const Tensor& from) {
    backend_.device().copy_on_device(to.raw(), from.raw(), static_cast<size_t>(to.num_bytes()));
  }
  template <typename Number>
  void fill_on_host(const Tensor& tensor, Number&& number) {  // f32
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(number(i));
    backend_.device().copy_to_device(tensor.raw(), values.data(), values.size() * sizeof(float));
  }

  HugeCases cases_;
  backend::Backend& backend_;
  int64_t num_;
  std::string name_;
  std::vector<int32_t> offsets_, step_offsets_;
  Buffer device_offsets_, device_step_offsets_;
  uint64_t seed_ = 500;
};

void delta_rule(ManySequences& many, int64_t K, int64_t V, bool per_channel) {
  const int64_t R = many.num_rows(), S = many.num(), C = per_channel ? K : 1;
  const DType a = many.activation(), f = many.statistic();
  const double unit = 1 / std::sqrt(static_cast<double>(K));
  const Tensor q = many.normal(a, {R, H, K}, unit), k = many.normal(a, {R, H, K}, unit);
  const Tensor v = many.normal(a, {R, H, V}, 1), d_o = many.normal(a, {R, H, V}, 1);
  const Tensor g = many.uniform({R, H, C}, -1, 0), beta = many.uniform({R, H}, 0, 1);
  const Tensor initial = many.normal(f, {S, H, K, V}, 0.5), d_final = many.normal(f, {S, H, K, V}, 0.5);
  using O = ManySequences::Output;
  many.compare(per_channel ? "gated_delta_rule (KDA)" : "gated_delta_rule (GDN)",
               {O{"o_RGV", a, {R, H, V}, true}, O{"final_state_SGKV", f, {S, H, K, V}, false},
                O{"dq_RHK", a, {R, H, K}, true}, O{"dk_RHK", a, {R, H, K}, true}, O{"dv_RGV", a, {R, H, V}, true},
                O{"dg_RGK", f, {R, H, C}, true}, O{"dbeta_RG", f, {R, H}, true},
                O{"d_initial_state_SGKV", f, {S, H, K, V}, false}},
               {}, [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::GatedDeltaRuleForward forward{.q_RHK = part.rows(q),
                                                    .k_RHK = part.rows(k),
                                                    .v_RGV = part.rows(v),
                                                    .g_RGK = part.rows(g),
                                                    .beta_RG = part.rows(beta),
                                                    .sequences = many.sequences(part),
                                                    .initial_state_SGKV = part.states(initial),
                                                    .final_state_SGKV = out[1],
                                                    .o_RGV = out[0],
                                                    .saved = {},
                                                    .scale = unit};
                 const Buffer saved = many.scratch(ops::gated_delta_rule_saved_bytes(many.context(), forward));
                 forward.saved = saved.tensor(DType::kU8, {static_cast<int64_t>(saved.num_bytes())});
                 ops::gated_delta_rule_forward(many.context(), forward);
                 ops::gated_delta_rule_backward(many.context(), {.do_RGV = part.rows(d_o),
                                                                 .d_final_state_SGKV = part.states(d_final),
                                                                 .q_RHK = forward.q_RHK,
                                                                 .k_RHK = forward.k_RHK,
                                                                 .v_RGV = forward.v_RGV,
                                                                 .g_RGK = forward.g_RGK,
                                                                 .beta_RG = forward.beta_RG,
                                                                 .sequences = forward.sequences,
                                                                 .initial_state_SGKV = forward.initial_state_SGKV,
                                                                 .saved = forward.saved,
                                                                 .dq_RHK = out[2],
                                                                 .dk_RHK = out[3],
                                                                 .dv_RGV = out[4],
                                                                 .dg_RGK = out[5],
                                                                 .dbeta_RG = out[6],
                                                                 .d_initial_state_SGKV = out[7],
                                                                 .scale = unit});
                 many.context().device->synchronize();  // `saved` ends here
               });
  many.end_case();
}

void short_conv(ManySequences& many, int64_t X) {
  const int64_t R = many.num_rows(), S = many.num();
  const DType a = many.activation(), f = many.statistic();
  const Tensor x = many.normal(a, {R, X}, 1), dy = many.normal(a, {R, X}, 1), weight = many.normal(f, {X, W}, 0.5);
  const Tensor history = many.normal(f, {S, W - 1, X}, 1);
  using O = ManySequences::Output;
  many.compare("short_conv", {O{"y_RX", a, {R, X}, true}, O{"final_history_SWX", f, {S, W - 1, X}, false}}, {},
               [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::short_conv_forward(many.context(), {part.rows(x), weight, many.sequences(part), part.states(history),
                                                          out[1], out[0]});
               });
  many.compare("short_conv", {O{"dx_RX", a, {R, X}, true}}, {{"dweight_XW", {X, W}}},
               [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>& sums) {
                 ops::short_conv_backward(many.context(),
                                          {part.rows(dy), part.rows(x), weight, many.sequences(part), out[0], sums[0]});
               });
  many.end_case();
}

void short_conv_norm(ManySequences& many, int64_t K) {
  const int64_t R = many.num_rows(), S = many.num(), X = 2 * H * K;
  const DType a = many.activation(), f = many.statistic();
  const Tensor x = many.normal(a, {R, X}, 1), weight = many.normal(f, {X, W}, 0.5);
  const Tensor dq = many.normal(a, {R, H, K}, 1), dk = many.normal(a, {R, H, K}, 1);
  const Tensor history = many.normal(f, {S, W - 1, X}, 1);
  using O = ManySequences::Output;
  const std::vector<O> forward = {O{"q_RHK", a, {R, H, K}, true}, O{"k_RHK", a, {R, H, K}, true},
                                  O{"q_inv_norm_RH", f, {R, H}, true}, O{"k_inv_norm_RH", f, {R, H}, true}};
  std::vector<O> outputs = forward;
  outputs.push_back(O{"final_history_SWX", f, {S, W - 1, X}, false});
  many.compare("short_conv_norm", outputs, {},
               [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::short_conv_norm_forward(many.context(),
                                              {part.rows(x), weight, many.sequences(part), part.states(history), out[4],
                                               out[0], out[1], out[2], out[3]});
               });
  outputs = forward;
  outputs.push_back(O{"dx_RX", a, {R, X}, true});
  many.compare("short_conv_norm", outputs, {{"dweight_XW", {X, W}}},
               [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>& sums) {
                 ops::short_conv_norm_forward(many.context(), {part.rows(x), weight, many.sequences(part), Tensor(),
                                                               Tensor(), out[0], out[1], out[2], out[3]});
                 ops::short_conv_norm_backward(many.context(), {part.rows(dq), part.rows(dk), out[0], out[1], out[2], out[3],
                                                                part.rows(x), weight, many.sequences(part), out[4], sums[0]});
               });
  many.end_case();
}

void gated_rms_norm(ManySequences& many, int64_t V, ops::GateActivation activation) {
  const int64_t R = many.num_rows();
  const DType a = many.activation(), f = many.statistic();
  const Tensor o = many.normal(a, {R, H, V}, 1), gate = many.normal(a, {R, H, V}, 1), dy = many.normal(a, {R, H, V}, 1);
  const Tensor weight = many.uniform({V}, 0.5, 1.5);
  using O = ManySequences::Output;
  many.compare("gated_rms_norm",
               {O{"y_RGV", a, {R, H, V}, true}, O{"inv_rms_RG", f, {R, H}, true}, O{"do_RGV", a, {R, H, V}, true},
                O{"dgate_RGV", a, {R, H, V}, true}},
               {{"dweight_V", {V}}}, [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>& sums) {
                 ops::gated_rms_norm_forward(many.context(), {part.rows(o), part.rows(gate), weight, out[0], out[1], 1e-6,
                                                              activation});
                 ops::gated_rms_norm_backward(many.context(), {part.rows(dy), part.rows(o), part.rows(gate), weight, out[1],
                                                               out[2], out[3], sums[0], activation});
               });
  many.end_case();
}

void delta_gate(ManySequences& many, int64_t K) {
  const int64_t R = many.num_rows();
  const DType a = many.activation(), f = many.statistic();
  const Tensor decay = many.normal(a, {R, H, K}, 1), strength = many.normal(a, {R, H}, 1);
  const Tensor A_log = many.uniform({H}, 0, 2.77), dt_bias = many.uniform({H, K}, -7, -2);
  const Tensor dg = many.normal(f, {R, H, K}, 1), dbeta = many.normal(f, {R, H}, 1);
  using O = ManySequences::Output;
  many.compare("delta_gate",
               {O{"g_RGK", f, {R, H, K}, true}, O{"beta_RG", f, {R, H}, true}, O{"da_RGK", a, {R, H, K}, true},
                O{"db_RG", a, {R, H}, true}},
               {{"dA_log_G", {H}}, {"ddt_bias_GK", {H, K}}},
               [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>& sums) {
                 ops::delta_gate_forward(many.context(),
                                         {part.rows(decay), part.rows(strength), A_log, dt_bias, out[0], out[1]});
                 ops::delta_gate_backward(many.context(), {part.rows(dg), part.rows(dbeta), part.rows(decay),
                                                           part.rows(strength), A_log, dt_bias, out[2], out[3], sums[0],
                                                           sums[1]});
               });
  many.end_case();
}

void causal_attention(ManySequences& many, int64_t K) {
  const int64_t R = many.num_rows();
  const DType a = many.activation(), f = many.statistic();
  const Tensor q = many.normal(a, {R, H, K}, 1), k = many.normal(a, {R, H, K}, 1), v = many.normal(a, {R, H, K}, 1);
  const Tensor d_o = many.normal(a, {R, H, K}, 1);
  const double scale = 1 / std::sqrt(static_cast<double>(K));
  using O = ManySequences::Output;
  many.compare("causal_attention",
               {O{"o_RHV", a, {R, H, K}, true}, O{"lse_RH", f, {R, H}, true}, O{"dq_RHK", a, {R, H, K}, true},
                O{"dk_RHK", a, {R, H, K}, true}, O{"dv_RHV", a, {R, H, K}, true}},
               {}, [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::CausalAttentionForward forward;
                 forward.q_RHK = part.rows(q);
                 forward.k_RHK = part.rows(k);
                 forward.v_RHV = part.rows(v);
                 forward.sequences = many.sequences(part);
                 forward.o_RHV = out[0];
                 forward.lse_RH = out[1];
                 forward.scale = scale;
                 ops::causal_attention_forward(many.context(), forward);
                 ops::causal_attention_backward(many.context(),
                                                {part.rows(d_o), part.rows(q), part.rows(k), part.rows(v), out[0], out[1],
                                                 many.sequences(part), out[2], out[3], out[4], scale});
               });
  many.end_case();
}

void rotary(ManySequences& many, int64_t K) {
  const int64_t R = many.num_rows();
  const DType a = many.activation();
  const Tensor x = many.normal(a, {R, H, K}, 1);
  for (const auto direction : {ops::RotaryDirection::kForward, ops::RotaryDirection::kBackward}) {
    many.compare("rotary", {ManySequences::Output{"y_RHX", a, {R, H, K}, true}}, {},
                 [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                   ops::rotary(many.context(), {.x_RHX = part.rows(x),
                                                .y_RHX = out[0],
                                                .sequences = many.sequences(part),
                                                .start_positions_S = {},
                                                .theta = 10000,
                                                .direction = direction});
                 });
  }
  many.end_case();
}

// Steps of decoding: one token of every sequence, with what came before in a state or a cache.
void delta_rule_step(ManySequences& many, int64_t K, int64_t V, bool per_channel) {
  const int64_t S = many.num(), C = per_channel ? K : 1;
  const DType a = many.activation(), f = many.statistic();
  const double unit = 1 / std::sqrt(static_cast<double>(K));
  const Tensor q = many.normal(a, {S, H, K}, unit), k = many.normal(a, {S, H, K}, unit), v = many.normal(a, {S, H, V}, 1);
  const Tensor g = many.uniform({S, H, C}, -1, 0), beta = many.uniform({S, H}, 0, 1);
  const Tensor state = many.normal(f, {S, H, K, V}, 0.5);
  using O = ManySequences::Output;
  many.compare(per_channel ? "one token, KDA" : "one token, GDN",
               {O{"o_RGV", a, {S, H, V}, false}, O{"state_SGKV", f, state.shape(), false, state}}, {},
               [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::gated_delta_rule_forward(many.context(), {.q_RHK = part.states(q),
                                                                .k_RHK = part.states(k),
                                                                .v_RGV = part.states(v),
                                                                .g_RGK = part.states(g),
                                                                .beta_RG = part.states(beta),
                                                                .sequences = many.steps(part),
                                                                .initial_state_SGKV = out[1],
                                                                .final_state_SGKV = out[1],
                                                                .o_RGV = out[0],
                                                                .saved = {},
                                                                .scale = unit});
               });
  many.end_case();
}

void cached_attention(ManySequences& many, int64_t K) {
  constexpr int64_t kRoom = 4;
  const int64_t S = many.num();
  const DType a = many.activation();
  const Tensor q = many.normal(a, {S, H, K}, 1), k = many.normal(a, {S, H, K}, 1), v = many.normal(a, {S, H, K}, 1);
  const Tensor k_cache = many.normal(a, {S, kRoom, H, K}, 1), v_cache = many.normal(a, {S, kRoom, H, K}, 1);
  std::vector<int32_t> before;
  for (int64_t s = 0; s < S; ++s) before.push_back(static_cast<int32_t>(s % kRoom));
  const Tensor lengths = many.integers(before);
  using O = ManySequences::Output;
  many.compare("attention through a cache",
               {O{"o_RHV", a, {S, H, K}, false}, O{"k_cache_SXHK", a, k_cache.shape(), false, k_cache},
                O{"v_cache_SXHV", a, v_cache.shape(), false, v_cache}},
               {}, [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::CausalAttentionForward forward;
                 forward.q_RHK = part.states(q);
                 forward.k_RHK = part.states(k);
                 forward.v_RHV = part.states(v);
                 forward.sequences = many.steps(part);
                 forward.o_RHV = out[0];
                 forward.k_cache_SXHK = out[1];
                 forward.v_cache_SXHV = out[2];
                 forward.cache_lengths_S = part.states(lengths);
                 forward.scale = 1 / std::sqrt(static_cast<double>(K));
                 ops::causal_attention_forward(many.context(), forward);
               });
  many.end_case();
}

// `low`: decay and output gate in two factors, as KDA decodes.
void delta_step(ManySequences& many, int64_t K, int64_t V, bool per_channel, bool low = false) {
  const int64_t S = many.num(), C = per_channel ? K : 1, X = 2 * H * K;
  const DType a = many.activation(), f = many.statistic();
  const Tensor qk = many.normal(a, {S, X}, 1), v = many.normal(a, {S, H * V}, 1), z = many.normal(a, {S, H * V}, 1);
  const Tensor decay = many.normal(a, {S, H, C}, 1), strength = many.normal(a, {S, H}, 1);
  const Tensor qk_conv = many.normal(f, {X, W}, 0.5), v_conv = many.normal(f, {H * V, W}, 0.5);
  const Tensor A_log = many.uniform({H}, 0, 2.77), dt_bias = many.uniform({H, C}, -7, -2);
  const Tensor norm_weight = many.uniform({V}, 0.5, 1.5);
  const Tensor qk_history = many.normal(f, {S, W - 1, X}, 1), v_history = many.normal(f, {S, W - 1, H * V}, 1);
  const Tensor state = many.normal(f, {S, H, K, V}, 0.5);
  const Tensor a_low = many.normal(a, {S, V}, 1), z_low = many.normal(a, {S, V}, 1);
  const Tensor a_weight = many.normal(a, {H * K, V}, 0.125), z_weight = many.normal(a, {H * V, V}, 0.125);
  const Tensor z_bias = many.normal(f, {H * V}, 1);
  using O = ManySequences::Output;
  many.compare(low ? "delta_step (KDA, factors)" : per_channel ? "delta_step (KDA)" : "delta_step (GDN)",
               {O{"y_SX", a, {S, H * V}, false}, O{"qk_history_SWX", f, qk_history.shape(), false, qk_history},
                O{"v_history_SWX", f, v_history.shape(), false, v_history}, O{"state_SGKV", f, state.shape(), false, state}},
               {}, [&](const Part& part, const std::vector<Tensor>& out, const std::vector<Tensor>&) {
                 ops::DeltaStep step;
                 step.qk_SX = part.states(qk);
                 step.v_SX = part.states(v);
                 if (low) {
                   step.a_low_SP = part.states(a_low);
                   step.a_weight_XP = a_weight;
                   step.z_low_SP = part.states(z_low);
                   step.z_weight_XP = z_weight;
                   step.z_bias_X = z_bias;
                 } else {
                   step.a_SGK = part.states(decay);
                   step.z_SX = part.states(z);
                 }
                 step.b_SG = part.states(strength);
                 step.qk_conv_XW = qk_conv;
                 step.v_conv_XW = v_conv;
                 step.A_log_G = A_log;
                 step.dt_bias_GK = dt_bias;
                 step.norm_weight_V = norm_weight;
                 step.sequences = many.steps(part);
                 step.qk_history_SWX = out[1];
                 step.v_history_SWX = out[2];
                 step.state_SGKV = out[3];
                 step.y_SX = out[0];
                 step.activation = per_channel ? ops::GateActivation::kSigmoid : ops::GateActivation::kSilu;
                 ops::delta_step(many.context(), step);
               });
  many.end_case();
}

}  // namespace

std::vector<OpCaseResult> run_many_sequences(backend::Backend& backend, DType dtype, int64_t num_sequences,
                                             const std::string& only_op) {
  ManySequences many(backend, dtype, num_sequences);
  const auto wanted = [&](const char* op) { return only_op.empty() || only_op == op; };
  if (wanted("gated_delta_rule")) {
    delta_rule(many, 64, 64, false);
    delta_rule(many, 32, 64, true);
    delta_rule_step(many, 64, 64, false);
    delta_rule_step(many, 32, 64, true);
  }
  if (wanted("short_conv")) short_conv(many, H * 64);
  if (wanted("short_conv_norm")) short_conv_norm(many, 64);
  if (wanted("gated_rms_norm")) {
    gated_rms_norm(many, 64, ops::GateActivation::kSilu);
    gated_rms_norm(many, 64, ops::GateActivation::kSigmoid);
  }
  if (wanted("delta_gate")) {
    delta_gate(many, 1);
    delta_gate(many, 32);
  }
  if (wanted("causal_attention")) {
    causal_attention(many, 64);
    cached_attention(many, 64);
  }
  if (wanted("rotary")) rotary(many, 32);
  if (wanted("delta_step")) {
    delta_step(many, 64, 64, false);
    delta_step(many, 32, 64, true);
    delta_step(many, 32, 64, true, /*low=*/true);
  }
  return many.results();
}

}  // namespace deltatrain::test
