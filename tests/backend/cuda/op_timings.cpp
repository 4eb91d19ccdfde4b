#include "backend/cuda/op_timings.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/device_random.h"
#include "backend/cuda/gemm_library.h"
#include "ops/op_table.h"

namespace deltatrain::test {

namespace {

using ops::GradMode;
constexpr DType kBf16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;
// Measured on an H200: a large copy, bytes read plus written, and a large bf16 product on random data.
constexpr double kCopyBytesPerSecond = 4.3e12;
constexpr double kProductFlops = 790e12;
constexpr int kSamples = 25;
constexpr int64_t kRotatedBytes = int64_t{512} << 20;  // several times the last cache level

class Timings {
 public:
  Timings(backend::Backend& backend, std::string only_op)
      : backend_(backend),
        device_(static_cast<backend::cuda::CudaDevice&>(backend.device())),
        arena_(backend.device().memory(), size_t{512} << 20),
        context_(backend.context(arena_, kBf16)),
        only_op_(std::move(only_op)) {
    DELTATRAIN_CUDA_CALL(cudaEventCreate(&begin_));
    DELTATRAIN_CUDA_CALL(cudaEventCreate(&end_));
  }
  ~Timings() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timings(const Timings&) = delete;
  Timings& operator=(const Timings&) = delete;

  const Context& context() const { return context_; }
  backend::cuda::CudaDevice& device() { return device_; }

  Tensor make(DType dtype, const Shape& shape) {
    buffers_.emplace_back(device_.memory(), static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype)));
    return buffers_.back().tensor(dtype, shape);
  }
  Tensor random(const Shape& shape, double deviation = 1, DType dtype = kBf16) {
    const Tensor tensor = make(dtype, shape);
    fill_normal(context_, tensor, deviation, ++seed_);
    return tensor;
  }
  Tensor zeros(DType dtype, const Shape& shape) {
    const Tensor tensor = make(dtype, shape);
    device_.fill_zero(tensor.raw(), static_cast<size_t>(tensor.num_bytes()));
    return tensor;
  }
  Tensor positive(const Shape& shape) {
    const Tensor tensor = make(kF32, shape);
    fill_uniform(context_, tensor, 0.5, 1.5, ++seed_);
    return tensor;
  }
  // S sequences of T tokens.
  ops::Sequences sequences(int64_t S, int64_t T) {
    offsets_.clear();
    for (int64_t s = 0; s <= S; ++s) offsets_.push_back(static_cast<int32_t>(s * T));
    const Tensor on_device = make(DType::kI32, {S + 1});
    device_.copy_to_device(on_device.raw(), offsets_.data(), offsets_.size() * sizeof(int32_t));
    return {offsets_, on_device};
  }

  // Times `call` on buffers that `prepare` makes, as many sets of them as the caches cannot hold. `bytes` and `flops`
  // are what one call must move and compute; the larger of the two times they take is the limit.
  using Call = std::function<void()>;
  void time(const std::string& op, const std::string& shape, double bytes, double flops, const std::function<Call()>& prepare) {
    if (!only_op_.empty() && op.find(only_op_) == std::string::npos) return;
    const auto num_sets = static_cast<size_t>(std::clamp(std::ceil(static_cast<double>(kRotatedBytes) / bytes), 1.0, 16.0));
    std::vector<Call> calls;
    for (size_t i = 0; i < num_sets; ++i) calls.push_back(prepare());
    device_.synchronize();
    size_t next = 0;
    const auto run_calls = [&](int count) {
      DELTATRAIN_CUDA_CALL(cudaEventRecord(begin_, device_.stream()));
      for (int i = 0; i < count; ++i) calls[next++ % calls.size()]();
      DELTATRAIN_CUDA_CALL(cudaEventRecord(end_, device_.stream()));
      DELTATRAIN_CUDA_CALL(cudaEventSynchronize(end_));
      float ms = 0;
      DELTATRAIN_CUDA_CALL(cudaEventElapsedTime(&ms, begin_, end_));
      return ms / static_cast<float>(count);
    };
    run_calls(3);
    // Short calls are timed several at a time, so that launches overlap as they do in a step.
    const int per_sample = static_cast<int>(std::clamp(0.5F / run_calls(1), 1.0F, 20.0F));
    std::vector<float> samples;
    for (int i = 0; i < kSamples; ++i) samples.push_back(run_calls(per_sample));
    std::sort(samples.begin(), samples.end());
    const double ms = samples[samples.size() / 2];
    const double by_bytes = bytes / kCopyBytesPerSecond * 1e3;
    const double by_flops = flops / kProductFlops * 1e3;
    const bool computes = by_flops > by_bytes;
    const double rate = computes ? flops / ms * 1e-9 : bytes / ms * 1e-6;
    std::printf("%-26s %-34s %9.4f ms %9.1f %-7s %5.1f %%  (spread %.1f %%)\n", op.c_str(), shape.c_str(), ms, rate,
                computes ? "TFLOP/s" : "GB/s", 100 * std::max(by_bytes, by_flops) / ms,
                100 * (samples[samples.size() * 9 / 10] - samples[samples.size() / 10]) / ms);
    std::fflush(stdout);
    buffers_.clear();
  }

 private:
  backend::Backend& backend_;
  backend::cuda::CudaDevice& device_;
  Arena arena_;
  Context context_;
  std::string only_op_;
  std::vector<Buffer> buffers_;
  std::vector<int32_t> offsets_;
  uint64_t seed_ = 1;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

std::string text(std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  std::string result;
  for (const auto& [name, size] : sizes) result += (result.empty() ? "" : " ") + std::string(name) + "=" + std::to_string(size);
  return result;
}

double megabytes_of(int64_t elements, int64_t bytes_each) { return static_cast<double>(elements) * static_cast<double>(bytes_each); }

void time_copy(Timings& t) {
  constexpr int64_t n = int64_t{1} << 30;
  t.time("copy", "1 GiB", 2.0 * n, 0, [&] {
    const Tensor from = t.random({n / 2});
    const Tensor to = t.make(kBf16, {n / 2});
    return [&t, from, to] { t.device().copy_on_device(to.raw(), from.raw(), static_cast<size_t>(from.num_bytes())); };
  });
}

void time_norms(Timings& t, int64_t R, int64_t D) {
  const std::string shape = text({{"R", R}, {"D", D}});
  t.time("rms_norm_forward", shape + " residual", megabytes_of(R * D, 8), 0, [&] {
    const ops::RmsNormForward args{t.random({R, D}), t.random({R, D}), t.positive({D}), t.make(kBf16, {R, D}),
                                   t.make(kBf16, {R, D}), t.make(kF32, {R})};
    return [&t, args] { ops::rms_norm_forward(t.context(), args); };
  });
  t.time("rms_norm_forward", shape, megabytes_of(R * D, 4), 0, [&] {
    const ops::RmsNormForward args{t.random({R, D}), Tensor(), t.positive({D}), Tensor(), t.make(kBf16, {R, D}), t.make(kF32, {R})};
    return [&t, args] { ops::rms_norm_forward(t.context(), args); };
  });
  t.time("rms_norm_backward", shape + " dsum", megabytes_of(R * D, 8), 0, [&] {
    const ops::RmsNormBackward args{t.random({R, D}), t.random({R, D}), t.positive({D}), t.positive({R}),
                                    t.random({R, D}), t.make(kBf16, {R, D}), t.zeros(kF32, {D})};
    return [&t, args] { ops::rms_norm_backward(t.context(), args); };
  });
}

void time_gated_norm(Timings& t, int64_t R, int64_t G, int64_t V, int64_t stride) {
  const std::string shape = text({{"R", R}, {"G", G}, {"V", V}, {"stride", stride}});
  const auto gate = [&] { return t.random({R, stride}).columns(stride - G * V, stride).split_last(G, V); };
  t.time("gated_rms_norm_forward", shape, megabytes_of(R * G * V, 6), 0, [&] {
    const ops::GatedRmsNormForward args{t.random({R, G, V}), gate(), t.positive({V}), t.make(kBf16, {R, G, V}), t.make(kF32, {R, G})};
    return [&t, args] { ops::gated_rms_norm_forward(t.context(), args); };
  });
  t.time("gated_rms_norm_backward", shape, megabytes_of(R * G * V, 10), 0, [&] {
    const ops::GatedRmsNormBackward args{t.random({R, G, V}), t.random({R, G, V}), gate(), t.positive({V}), t.positive({R, G}),
                                         t.make(kBf16, {R, G, V}), gate(), t.zeros(kF32, {V})};
    return [&t, args] { ops::gated_rms_norm_backward(t.context(), args); };
  });
}

void time_short_conv(Timings& t, int64_t S, int64_t T, int64_t X, int64_t stride) {
  const int64_t R = S * T;
  const std::string shape = text({{"R", R}, {"X", X}, {"stride", stride}});
  const auto input = [&] { return t.random({R, stride}).columns(0, X); };
  t.time("short_conv_forward", shape, megabytes_of(R * X, 4), 0, [&] {
    const ops::ShortConvForward args{input(), t.random({X, 4}, 0.5, kF32), t.sequences(S, T), Tensor(), Tensor(), t.make(kBf16, {R, X})};
    return [&t, args] { ops::short_conv_forward(t.context(), args); };
  });
  t.time("short_conv_backward", shape, megabytes_of(R * X, 6), 0, [&] {
    const ops::ShortConvBackward args{t.random({R, X}), input(), t.random({X, 4}, 0.5, kF32), t.sequences(S, T), input(), t.zeros(kF32, {X, 4})};
    return [&t, args] { ops::short_conv_backward(t.context(), args); };
  });
}

void time_l2_norm(Timings& t, int64_t R, int64_t H, int64_t K, int64_t stride) {
  const std::string shape = text({{"R", R}, {"H", H}, {"K", K}, {"stride", stride}});
  const auto input = [&] { return t.random({R, stride}).columns(0, H * K).split_last(H, K); };
  t.time("l2_norm_forward", shape, megabytes_of(R * H * K, 4), 0, [&] {
    const ops::L2NormForward args{input(), t.make(kBf16, {R, H, K}), t.make(kF32, {R, H})};
    return [&t, args] { ops::l2_norm_forward(t.context(), args); };
  });
  t.time("l2_norm_backward", shape, megabytes_of(R * H * K, 6), 0, [&] {
    const ops::L2NormBackward args{t.random({R, H, K}), t.random({R, H, K}), t.positive({R, H}), input()};
    return [&t, args] { ops::l2_norm_backward(t.context(), args); };
  });
}

void time_delta_gate(Timings& t, int64_t R, int64_t G, int64_t K, int64_t stride) {
  const std::string shape = text({{"R", R}, {"G", G}, {"K", K}, {"stride", stride}});
  const auto a = [&] { return t.random({R, stride}).columns(stride - G * K, stride).split_last(G, K); };
  const auto b = [&] { return t.random({R, stride}).columns(0, G); };
  t.time("delta_gate_forward", shape, megabytes_of(R * G * K + R * G, 6), 0, [&] {
    const ops::DeltaGateForward args{a(), b(), t.random({G}, 1, kF32), t.random({G, K}, 1, kF32), t.make(kF32, {R, G, K}), t.make(kF32, {R, G})};
    return [&t, args] { ops::delta_gate_forward(t.context(), args); };
  });
  t.time("delta_gate_backward", shape, megabytes_of(R * G * K + R * G, 8), 0, [&] {
    const ops::DeltaGateBackward args{t.random({R, G, K}, 1, kF32), t.random({R, G}, 1, kF32), a(), b(), t.random({G}, 1, kF32),
                                      t.random({G, K}, 1, kF32), a(), b(), t.zeros(kF32, {G}), t.zeros(kF32, {G, K})};
    return [&t, args] { ops::delta_gate_backward(t.context(), args); };
  });
}

void time_attention_parts(Timings& t, int64_t S, int64_t T, int64_t H, int64_t nope, int64_t rope) {
  const int64_t R = S * T;
  const int64_t K = nope + rope;
  const std::string shape = text({{"R", R}, {"H", H}, {"K", K}});
  t.time("rotary", text({{"R", R}, {"H", H}, {"X", rope}}) + " of " + std::to_string(K), megabytes_of(R * H * rope, 4), 0, [&] {
    ops::Rotary args;
    args.x_RHX = args.y_RHX = t.random({R, H, K}).columns(nope, K);
    args.sequences = t.sequences(S, T);
    return [&t, args] { ops::rotary(t.context(), args); };
  });
  t.time("mla_key_forward", shape, megabytes_of(R * H * (nope + K) + R * rope, 2), 0, [&] {
    const ops::MlaKeyForward args{t.random({R, H, 2 * nope}).columns(0, nope), t.random({R, rope}), t.make(kBf16, {R, H, K})};
    return [&t, args] { ops::mla_key_forward(t.context(), args); };
  });
  t.time("mla_key_backward", shape, megabytes_of(R * H * (nope + K) + R * rope, 2), 0, [&] {
    const ops::MlaKeyBackward args{t.random({R, H, K}), t.random({R, H, 2 * nope}).columns(0, nope), t.random({R, rope})};
    return [&t, args] { ops::mla_key_backward(t.context(), args); };
  });
}

void time_attention(Timings& t, int64_t S, int64_t T, int64_t H, int64_t K) {
  const int64_t R = S * T;
  const std::string shape = text({{"S", S}, {"T", T}, {"H", H}, {"K=V", K}});
  const double pairs = static_cast<double>(S) * static_cast<double>(T) * static_cast<double>(T) / 2 * static_cast<double>(H);
  const double product = 2 * pairs * static_cast<double>(K);
  const double scale = 1 / std::sqrt(static_cast<double>(K));
  t.time("causal_attention_forward", shape, megabytes_of(R * H * K, 8), 2 * product, [&] {
    ops::CausalAttentionForward args;
    args.q_RHK = t.random({R, H, K});
    args.k_RHK = t.random({R, H, K});
    args.v_RHV = t.random({R, H, K});
    args.sequences = t.sequences(S, T);
    args.o_RHV = t.make(kBf16, {R, H, K});
    args.lse_RH = t.make(kF32, {R, H});
    args.scale = scale;
    return [&t, args] { ops::causal_attention_forward(t.context(), args); };
  });
  t.time("causal_attention_backward", shape, megabytes_of(R * H * K, 16), 5 * product, [&] {
    const ops::CausalAttentionBackward args{t.random({R, H, K}), t.random({R, H, K}), t.random({R, H, K}), t.random({R, H, K}),
                                            t.random({R, H, K}), t.positive({R, H}), t.sequences(S, T), t.make(kBf16, {R, H, K}),
                                            t.make(kBf16, {R, H, K}), t.make(kBf16, {R, H, K}), scale};
    return [&t, args] { ops::causal_attention_backward(t.context(), args); };
  });
}

void time_swiglu(Timings& t, int64_t R, int64_t F) {
  const std::string shape = text({{"R", R}, {"F", F}});
  t.time("swiglu_forward", shape, megabytes_of(R * F, 6), 0, [&] {
    const ops::SwigluForward args{t.random({R, 2 * F}), t.make(kBf16, {R, F})};
    return [&t, args] { ops::swiglu_forward(t.context(), args); };
  });
  t.time("swiglu_backward", shape + " in place", megabytes_of(R * F, 12), 0, [&] {
    const Tensor gate_up = t.random({R, 2 * F});
    const ops::SwigluBackward args{t.random({R, F}), gate_up, gate_up, t.make(kBf16, {R, F})};
    return [&t, args] { ops::swiglu_backward(t.context(), args); };
  });
}

void time_cross_entropy(Timings& t, int64_t R, int64_t N) {
  t.time("cross_entropy", text({{"R", R}, {"N", N}}), megabytes_of(R * N, 4), 0, [&] {
    const Tensor labels = t.make(DType::kI32, {R});
    fill_ids(t.context(), labels, N, 1, 3);
    const ops::CrossEntropy args{t.random({R, N}), labels, t.make(kF32, {R}), Tensor(), 1.0 / 1024};
    return [&t, args] { ops::cross_entropy(t.context(), args); };
  });
}

void time_embedding(Timings& t, int64_t R, int64_t N, int64_t D) {
  const std::string shape = text({{"R", R}, {"N", N}, {"D", D}});
  const auto ids = [&t, R, N] {
    const Tensor tensor = t.make(DType::kI32, {R});
    fill_ids(t.context(), tensor, N, 4, 3);
    return tensor;
  };
  t.time("embedding_forward", shape, megabytes_of(R * D, 4), 0, [&] {
    const ops::EmbeddingForward args{ids(), t.random({N, D}), t.make(kBf16, {R, D})};
    return [&t, args] { ops::embedding_forward(t.context(), args); };
  });
  t.time("embedding_backward", shape, megabytes_of(R * D, 2), 0, [&] {
    const ops::EmbeddingBackward args{ids(), t.random({R, D}), t.zeros(kF32, {N, D})};
    return [&t, args] { ops::embedding_backward(t.context(), args); };
  });
}

void time_optimizer(Timings& t, int64_t n) {
  const auto scalars = [&t] {
    ops::StepScalars values;
    values.gradient_norm = 1;
    values.learning_rate = 1e-4;
    values.step = 10;
    const Tensor tensor = t.make(DType::kU8, {static_cast<int64_t>(sizeof values)});
    t.device().copy_to_device(tensor.raw(), &values, sizeof values);
    return static_cast<ops::StepScalars*>(tensor.raw());
  };
  t.time("adamw", text({{"X", n}}), megabytes_of(n, 30), 0, [&] {
    const ops::AdamW args{t.random({n}, 1, kF32), t.make(kBf16, {n}), t.random({n}, 1, kF32), t.random({n}, 1, kF32),
                          t.zeros(kF32, {n}), t.zeros(DType::kU8, {(n + 63) / 64}), scalars()};
    return [&t, args] { ops::adamw(t.context(), args); };
  });
  t.time("sum_of_squares", text({{"X", n}}), megabytes_of(n, 4), 0, [&] {
    const ops::SumOfSquares args{t.random({n}, 1, kF32), scalars()};
    return [&t, args] { ops::sum_of_squares(t.context(), args); };
  });
}

void time_elementwise(Timings& t, int64_t R, int64_t D) {
  t.time("add", text({{"R", R}, {"D", D}}), megabytes_of(R * D, 6), 0, [&] {
    const ops::Add args{t.random({R, D}), t.random({R, D}), t.make(kBf16, {R, D})};
    return [&t, args] { ops::add(t.context(), args); };
  });
  t.time("convert", text({{"f32 to bf16, X", R * D}}), megabytes_of(R * D, 6), 0, [&] {
    const ops::Convert args{t.random({R * D}, 1, kF32), t.make(kBf16, {R * D})};
    return [&t, args] { ops::convert(t.context(), args); };
  });
  t.time("sum_to", text({{"R", R}}), megabytes_of(R, 4), 0, [&] {
    const ops::SumTo args{t.random({R}, 1, kF32), static_cast<double*>(t.zeros(DType::kF64, {1}).raw())};
    return [&t, args] { ops::sum_to(t.context(), args); };
  });
}

void time_linear(Timings& t, int64_t R, int64_t D, int64_t X) {
  const std::string shape = text({{"R", R}, {"D", D}, {"X", X}});
  const double flops = 2.0 * static_cast<double>(R) * static_cast<double>(D) * static_cast<double>(X);
  const double small = 1 / std::sqrt(static_cast<double>(D));
  t.time("linear_forward", shape, megabytes_of(R * D + R * X + D * X, 2), flops, [&] {
    const ops::LinearForward args{t.random({R, D}), t.random({X, D}, small), Tensor(), t.make(kBf16, {R, X})};
    return [&t, args] { ops::linear_forward(t.context(), args); };
  });
  t.time("linear_backward dx", shape, megabytes_of(R * D + R * X + D * X, 2), flops, [&] {
    ops::LinearBackward args;
    args.dy_RX = t.random({R, X});
    args.weight_XD = t.random({X, D}, small);
    args.dx_RD = t.make(kBf16, {R, D});
    return [&t, args] { ops::linear_backward(t.context(), args); };
  });
  t.time("linear_backward dweight", shape, megabytes_of(R * D + R * X, 2) + megabytes_of(D * X, 8), flops, [&] {
    ops::LinearBackward args;
    args.dy_RX = t.random({R, X});
    args.x_RD = t.random({R, D});
    args.dweight_XD = t.zeros(kF32, {X, D});
    return [&t, args] { ops::linear_backward(t.context(), args); };
  });
}

}  // namespace

void print_op_timings(backend::Backend& backend, const std::string& only_op) {
  Timings t(backend, only_op);
  std::printf("median of %d; share of %.1f TB/s copied or %.0f TFLOP/s in bf16 products\n", kSamples, kCopyBytesPerSecond * 1e-12,
              kProductFlops * 1e-12);
  constexpr int64_t S = 32;
  constexpr int64_t T = 2048;
  constexpr int64_t R = S * T;
  time_copy(t);
  for (const int64_t D : {1024, 2048}) time_norms(t, R, D);
  time_gated_norm(t, R, 8, 64, 1552);
  time_gated_norm(t, R, 16, 64, 3104);
  time_short_conv(t, S, T, 1024, 1552);
  time_short_conv(t, S, T, 2048, 3104);
  time_l2_norm(t, R, 4, 64, 1024);
  time_l2_norm(t, R, 8, 32, 1024);
  time_delta_gate(t, R, 8, 1, 1552);
  time_delta_gate(t, R, 8, 32, 256);
  time_attention_parts(t, S, T, 16, 32, 32);
  time_attention(t, S, T, 16, 64);
  time_attention(t, 8, T, 16, 128);
  time_swiglu(t, R, 4096);
  time_swiglu(t, R / 2, 8192);
  time_cross_entropy(t, 16384, 128256);
  time_embedding(t, R, 128256, 1024);
  time_optimizer(t, 307767232);
  time_elementwise(t, R, 1024);
  const auto products = [&](int64_t rows, int64_t D, int64_t X) { time_linear(t, rows, D, X); };
  products(R, 1024, 1552);
  products(R, 1024, 1160);
  products(R, 512, 1024);
  products(R, 1024, 8192);
  products(R, 4096, 1024);
  products(16384, 1024, 128256);
  products(R, 2048, 3104);
  products(R / 2, 2048, 16384);
  products(R / 2, 8192, 2048);
  products(16384, 2048, 128256);
  std::printf("products: chosen / first proposal, ms\n");
  for (const auto& [name, choice] : t.device().gemm().choices()) {
    if (choice.num_candidates == 0) continue;
    std::printf("%-70s %8.4f / %8.4f of %d\n", name.c_str(), choice.milliseconds, choice.first_milliseconds, choice.num_candidates);
  }
}

}  // namespace deltatrain::test
