// What must not change a bit: the number of threads, the rows beside a row, the tokens after a
// token. And what may change only its rounding: cutting a sequence in parts that carry their state.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "backend/registry.h"
#include "base/random.h"
#include "ops/op_table.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

class CpuOpBitsTest : public testing::Test {
 protected:
  const Context& context() const { return context_; }
  Arena& arena() { return arena_; }

  Tensor filled(const Shape& shape, float value) {
    const Tensor tensor = arena_.save(DType::kF32, shape);
    std::fill_n(tensor.data<float>(), tensor.num_elements(), value);
    return tensor;
  }
  Tensor poisoned(const Shape& shape) { return filled(shape, std::nanf("")); }
  Tensor normal(const Shape& shape, uint64_t seed) {
    const Tensor tensor = arena_.save(DType::kF32, shape);
    const RandomStream random(seed, "op_bits");
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.data<float>()[i] = static_cast<float>(random.normal(static_cast<uint64_t>(i)));
    }
    return tensor;
  }
  ops::Sequences sequences(const std::vector<int32_t>& offsets) {
    const Tensor device = arena_.save(DType::kI32, {static_cast<int64_t>(offsets.size())});
    std::copy(offsets.begin(), offsets.end(), device.data<int32_t>());
    return {std::span<const int32_t>(device.data<int32_t>(), offsets.size()), device};
  }

  static bool same_bits(const Tensor& a, const Tensor& b) {
    return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.num_bytes())) == 0;
  }
  static double relative_error(const Tensor& got, const Tensor& want) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < want.num_elements(); ++i) {
      const double w = want.data<float>()[i];
      difference += std::pow(static_cast<double>(got.data<float>()[i]) - w, 2);
      norm += w * w;
    }
    return std::sqrt(difference / norm);
  }

  // `run` gives its results; they are the same bits with any number of threads.
  void expect_independent_of_threads(const std::string& what,
                                     const std::function<std::vector<Tensor>()>& run) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    const std::vector<Tensor> want = run();
    for (const int threads : {2, 3, 7}) {
      omp_set_num_threads(threads);
      const std::vector<Tensor> got = run();
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i], want[i]))
            << what << ", result " << i << ", " << threads << " threads";
      }
    }
    omp_set_num_threads(before);
  }

 private:
  std::unique_ptr<backend::Backend> cpu_ = backend::make_backend(DeviceKind::kCpu);
  Arena arena_{host_memory(), size_t{512} << 20};
  Context context_ = cpu_->context(arena_, DType::kF32);
};

TEST_F(CpuOpBitsTest, LinearDoesNotDependOnThreads) {
  for (const auto& [R, D, X] : {std::tuple<int64_t, int64_t, int64_t>{1, 512, 1000},
                                {3, 64, 4096},
                                {70, 33, 65},
                                {600, 512, 512},
                                {1000, 2048, 520},
                                {530, 100, 2100}}) {
    const Tensor x = normal({R, D}, 1), weight = normal({X, D}, 2), dy = normal({R, X}, 3),
                 bias = normal({X}, 4);
    expect_independent_of_threads("linear " + std::to_string(R), [&, R = R, D = D, X = X] {
      const Tensor y = poisoned({R, X}), dx = poisoned({R, D}), dweight = filled({X, D}, 1),
                   dbias = filled({X}, 1);
      ops::linear_forward(context(), {.x_RD = x, .weight_XD = weight, .bias_X = bias, .y_RX = y});
      ops::linear_backward(context(), {.dy_RX = dy,
                                       .x_RD = x,
                                       .weight_XD = weight,
                                       .dx_RD = dx,
                                       .dweight_XD = dweight,
                                       .dbias_X = dbias});
      return std::vector<Tensor>{y, dx, dweight, dbias};
    });
  }
}

// From 5 rows on, so that scoring gives the same numbers whatever is in the batch.
TEST_F(CpuOpBitsTest, LinearRowsDoNotDependOnTheNumberOfRows) {
  const int64_t D = 512, X = 700, R = 1100;
  const Tensor x = normal({R, D}, 1), weight = normal({X, D}, 2), bias = normal({X}, 3);
  const Tensor want = poisoned({R, X});
  ops::linear_forward(context(), {.x_RD = x, .weight_XD = weight, .bias_X = bias, .y_RX = want});
  for (const int64_t rows : {5, 7, 15, 16, 17, 64, 511, 512, 513, 527, 528, 1030}) {
    const Tensor y = poisoned({rows, X});
    ops::linear_forward(context(),
                        {.x_RD = x.rows(0, rows), .weight_XD = weight, .bias_X = bias, .y_RX = y});
    EXPECT_TRUE(same_bits(y, want.rows(0, rows))) << rows << " rows";
  }
}

TEST_F(CpuOpBitsTest, SumsOverRowsDoNotDependOnThreads) {
  const int64_t R = 1000, D = 200;
  const Tensor dy = normal({R, D}, 1), sum = normal({R, D}, 2), weight = normal({D}, 3),
               inv = filled({R}, 0.9F);
  expect_independent_of_threads("rms_norm", [&] {
    const Tensor dx = poisoned({R, D}), dweight = filled({D}, 1);
    ops::rms_norm_backward(context(), {.dy_RD = dy,
                                       .sum_RD = sum,
                                       .weight_D = weight,
                                       .inv_rms_R = inv,
                                       .dx_RD = dx,
                                       .dweight_D = dweight});
    return std::vector<Tensor>{dx, dweight};
  });
  expect_independent_of_threads("gated_rms_norm", [&] {
    const Shape shape = {R, 5, 40};
    const Tensor d_o = poisoned(shape), dgate = poisoned(shape), dweight = filled({40}, 1);
    ops::GatedRmsNormBackward args;
    args.dy_RGV = dy.reshape(shape);
    args.o_RGV = sum.reshape(shape);
    args.gate_RGV = dy.reshape(shape);
    args.weight_V = weight.rows(0, 40);
    args.inv_rms_RG = filled({R, 5}, 1.1F);
    args.do_RGV = d_o;
    args.dgate_RGV = dgate;
    args.dweight_V = dweight;
    ops::gated_rms_norm_backward(context(), args);
    return std::vector<Tensor>{d_o, dgate, dweight};
  });
  expect_independent_of_threads("delta_gate", [&] {
    const Shape shape = {R, 5, 40};
    ops::DeltaGateBackward args;
    args.dg_RGK = dy.reshape(shape);
    args.dbeta_RG = normal({R, 5}, 5);
    args.a_RGK = sum.reshape(shape);
    args.b_RG = normal({R, 5}, 6);
    args.A_log_G = normal({5}, 7);
    args.dt_bias_GK = normal({5, 40}, 8);
    args.da_RGK = poisoned(shape);
    args.db_RG = poisoned({R, 5});
    args.dA_log_G = filled({5}, 1);
    args.ddt_bias_GK = filled({5, 40}, 1);
    ops::delta_gate_backward(context(), args);
    return std::vector<Tensor>{args.da_RGK, args.db_RG, args.dA_log_G, args.ddt_bias_GK};
  });
  const ops::Sequences packed = sequences({0, 1, 130, 131, 600, 1000});
  expect_independent_of_threads("short_conv", [&] {
    const Tensor dx = poisoned({R, D}), dweight = filled({D, 4}, 1);
    ops::short_conv_backward(context(), {.dy_RX = dy,
                                         .x_RX = sum,
                                         .weight_XW = normal({D, 4}, 9),
                                         .sequences = packed,
                                         .dx_RX = dx,
                                         .dweight_XW = dweight});
    return std::vector<Tensor>{dx, dweight};
  });
  const Tensor ids = arena().save(DType::kI32, {R});
  for (int32_t r = 0; r < R; ++r) ids.data<int32_t>()[r] = r * r % 37;
  expect_independent_of_threads("embedding", [&] {
    const Tensor dweight = filled({37, D}, 1);
    ops::embedding_backward(context(), {.ids_R = ids, .dy_RD = dy, .dweight_ND = dweight});
    return std::vector<Tensor>{dweight};
  });
  expect_independent_of_threads("sum_of_squares", [&] {
    ops::StepScalars scalars;
    ops::sum_of_squares(context(), {dy.reshape({R * D}), &scalars});
    const Tensor result = filled({2}, 0);
    std::memcpy(result.raw(), &scalars.sum_of_squares, sizeof(double));
    return std::vector<Tensor>{result};
  });
}

TEST_F(CpuOpBitsTest, AttentionDoesNotDependOnThreads) {
  const int64_t R = 300, H = 3, K = 24, V = 20;
  const Tensor q = normal({R, H, K}, 1), k = normal({R, H, K}, 2), v = normal({R, H, V}, 3),
               d_o = normal({R, H, V}, 4);
  const ops::Sequences packed = sequences({0, 1, 130, 194, 300});
  expect_independent_of_threads("causal_attention", [&] {
    const Tensor o = poisoned({R, H, V}), lse = poisoned({R, H});
    ops::CausalAttentionForward forward;
    forward.q_RHK = q;
    forward.k_RHK = k;
    forward.v_RHV = v;
    forward.sequences = packed;
    forward.o_RHV = o;
    forward.lse_RH = lse;
    forward.scale = 0.2;
    ops::causal_attention_forward(context(), forward);
    ops::CausalAttentionBackward backward;
    backward.do_RHV = d_o;
    backward.q_RHK = q;
    backward.k_RHK = k;
    backward.v_RHV = v;
    backward.o_RHV = o;
    backward.lse_RH = lse;
    backward.sequences = packed;
    backward.dq_RHK = poisoned({R, H, K});
    backward.dk_RHK = poisoned({R, H, K});
    backward.dv_RHV = poisoned({R, H, V});
    backward.scale = 0.2;
    ops::causal_attention_backward(context(), backward);
    return std::vector<Tensor>{o, lse, backward.dq_RHK, backward.dk_RHK, backward.dv_RHV};
  });
}

TEST_F(CpuOpBitsTest, AttentionBeforeAPositionDoesNotDependOnWhatFollows) {
  const int64_t R = 150, H = 2, K = 24, V = 20;
  const Tensor q = normal({R, H, K}, 1), k = normal({R, H, K}, 2), v = normal({R, H, V}, 3);
  const ops::Sequences one = sequences({0, static_cast<int32_t>(R)});
  const auto attend = [&] {
    ops::CausalAttentionForward forward;
    forward.q_RHK = q;
    forward.k_RHK = k;
    forward.v_RHV = v;
    forward.sequences = one;
    forward.o_RHV = poisoned({R, H, V});
    forward.scale = 0.2;
    ops::causal_attention_forward(context(), forward);
    return forward.o_RHV;
  };
  const Tensor want = attend();
  for (const int64_t p : {149, 129, 128, 127, 65, 64, 63, 10, 1}) {
    for (const Tensor& tensor : {q, k, v}) {
      const Tensor other =
          normal({R - p, tensor.size(1), tensor.size(2)}, 50 + static_cast<uint64_t>(p));
      std::memcpy(tensor.rows(p, R).raw(), other.raw(), static_cast<size_t>(other.num_bytes()));
    }
    EXPECT_TRUE(same_bits(attend().rows(0, p), want.rows(0, p))) << "p " << p;
  }
}

// Parts of a sequence through the cache, token by token and in larger parts.
TEST_F(CpuOpBitsTest, AttentionInPartsEqualsTheWhole) {
  const int64_t R = 150, H = 2, K = 24, V = 20, room = 160;
  const Tensor q = normal({R, H, K}, 1), k = normal({R, H, K}, 2), v = normal({R, H, V}, 3);
  ops::CausalAttentionForward whole;
  whole.q_RHK = q;
  whole.k_RHK = k;
  whole.v_RHV = v;
  whole.sequences = sequences({0, static_cast<int32_t>(R)});
  whole.o_RHV = poisoned({R, H, V});
  whole.scale = 0.2;
  ops::causal_attention_forward(context(), whole);
  for (const int64_t part : {1, 2, 3, 16, 63, 64, 65, 100}) {
    const Tensor k_cache = poisoned({1, room, H, K}), v_cache = poisoned({1, room, H, V});
    const Tensor length = arena().save(DType::kI32, {1});
    const Tensor o = poisoned({R, H, V});
    for (int64_t begin = 0; begin < R; begin += part) {
      const int64_t end = std::min(R, begin + part);
      length.data<int32_t>()[0] = static_cast<int32_t>(begin);
      ops::CausalAttentionForward step = whole;
      step.q_RHK = q.rows(begin, end);
      step.k_RHK = k.rows(begin, end);
      step.v_RHV = v.rows(begin, end);
      step.sequences = sequences({0, static_cast<int32_t>(end - begin)});
      step.o_RHV = o.rows(begin, end);
      step.k_cache_SXHK = k_cache;
      step.v_cache_SXHV = v_cache;
      step.cache_lengths_S = length;
      ops::causal_attention_forward(context(), step);
    }
    EXPECT_LE(relative_error(o, whole.o_RHV), verify::kAttentionPiecesF32) << "parts of " << part;
  }
}

TEST_F(CpuOpBitsTest, ConvolutionInPartsEqualsTheWholeAndIsCausal) {
  const int64_t R = 130, X = 70;
  for (int64_t W = 1; W <= 8; ++W) {
    const Tensor x = normal({R, X}, 1), weight = normal({X, W}, 2),
                 first = normal({1, W - 1, X}, 3);
    const auto convolve = [&](int64_t begin, int64_t end, const Tensor& history, const Tensor& y) {
      ops::ShortConvForward args;
      args.x_RX = x.rows(begin, end);
      args.weight_XW = weight;
      args.sequences = sequences({0, static_cast<int32_t>(end - begin)});
      args.initial_history_SWX = history;
      args.final_history_SWX = history;
      args.y_RX = y.rows(begin, end);
      ops::short_conv_forward(context(), args);
    };
    const auto history_of_start = [&] {
      const Tensor history = poisoned({1, W - 1, X});
      std::memcpy(history.raw(), first.raw(), static_cast<size_t>(first.num_bytes()));
      return history;
    };
    const Tensor want = poisoned({R, X}), last = history_of_start();
    convolve(0, R, last, want);
    for (const int64_t part : {1, 2, 3, 5, 64, 100}) {
      const Tensor y = poisoned({R, X}), history = history_of_start();
      for (int64_t begin = 0; begin < R; begin += part)
        convolve(begin, std::min(R, begin + part), history, y);
      EXPECT_TRUE(same_bits(y, want)) << W << " taps, parts of " << part;
      EXPECT_TRUE(same_bits(history, last)) << W << " taps, parts of " << part;
    }
    const Tensor changed = normal({R - 50, X}, 9);
    std::memcpy(x.rows(50, R).raw(), changed.raw(), static_cast<size_t>(changed.num_bytes()));
    const Tensor y = poisoned({R, X});
    convolve(0, R, history_of_start(), y);
    EXPECT_TRUE(same_bits(y.rows(0, 50), want.rows(0, 50))) << W << " taps";
  }
}

}  // namespace

}  // namespace deltatrain::test
