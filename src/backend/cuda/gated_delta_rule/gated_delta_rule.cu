#include "backend/cuda/gated_delta_rule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/gated_delta_rule/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/shared_memory.h"
#include "base/check.h"
#include "base/error.h"

namespace deltatrain::backend::cuda {

namespace {

using delta::Bf16;
using delta::GateKind;
using delta::kChunk;

struct HeadSize {
  int64_t K;
  int64_t V;
};
constexpr HeadSize kScalarSizes[] = {{16, 16}, {16, 32}, {64, 64}, {64, 128}, {128, 128}};
constexpr HeadSize kChannelSizes[] = {{16, 16}, {16, 32}, {32, 64}, {64, 64}, {128, 128}};

// What the largest block of a direction takes.
int64_t shared_bytes_of(DeltaDirection direction, GateKind kind, bool is_f32, HeadSize size) {
  const auto [K, V] = size;
  const bool is_scalar = kind == GateKind::kScalar;
  if (direction == DeltaDirection::kForward) {
    if (is_f32) return delta::recurrence_forward_shared_bytes(K);
    return std::max(is_scalar ? delta::prepare_scalar_shared_bytes(K)
                              : delta::prepare_channel_shared_bytes(K),
                    delta::scan_forward_shared_bytes(kind, K, V));
  }
  if (is_f32) return delta::recurrence_backward_shared_bytes(K, V);
  return std::max(delta::scan_backward_shared_bytes(kind, K, V),
                  is_scalar ? delta::gradients_scalar_shared_bytes(K, V)
                            : delta::gradients_channel_shared_bytes(K, V));
}

std::vector<HeadSize> sizes_within(DeltaDirection direction, GateKind kind, bool is_f32,
                                   int64_t shared_bytes) {
  std::vector<HeadSize> sizes;
  const auto add = [&](HeadSize size) {
    if (shared_bytes_of(direction, kind, is_f32, size) <= shared_bytes) sizes.push_back(size);
  };
  if (kind == GateKind::kScalar) {
    for (const HeadSize size : kScalarSizes) add(size);
  } else {
    for (const HeadSize size : kChannelSizes) add(size);
  }
  return sizes;
}

std::string list_of(const std::vector<HeadSize>& sizes) {
  std::string list;
  for (const auto [K, V] : sizes)
    list += (list.empty() ? "" : ", ") + std::to_string(K) + "x" + std::to_string(V);
  return list;
}

// Asked while a step is planned, so that heads for which this device has too little shared memory
// are refused before anything runs.
void expect_head_size(const char* op, DeltaDirection direction, GateKind kind, bool is_f32,
                      HeadSize wanted) {
  const std::vector<HeadSize> sizes =
      sizes_within(direction, kind, is_f32, shared_bytes_limit());
  if (std::any_of(sizes.begin(), sizes.end(), [wanted](HeadSize size) {
        return size.K == wanted.K && size.V == wanted.V;
      })) {
    return;
  }
  throw UnsupportedError(error_text(op,
                                    kind == GateKind::kScalar
                                        ? "head size (one decay per head)"
                                        : "head size (one decay per key channel)",
                                    "one of " + list_of(sizes) + " on this cuda device",
                                    list_of({wanted})));
}

struct Sizes {
  int64_t R;
  int64_t H;
  int64_t G;
  int64_t K;
  int64_t V;
  int64_t S;
  int64_t J;                    // chunks
  int64_t chunks_per_sequence;  // 0 where lengths differ
  GateKind kind;
  bool is_f32;
};

// `Args` is one of the two argument structs.
template <class Args>
Sizes sizes_of(const char* op, DeltaDirection direction, const Args& args) {
  Sizes sizes{};
  sizes.R = args.q_RHK.size(0);
  sizes.H = args.q_RHK.size(1);
  sizes.K = args.q_RHK.size(2);
  sizes.G = args.v_RGV.size(1);
  sizes.V = args.v_RGV.size(2);
  sizes.S = args.sequences.num();
  sizes.kind = args.g_RGK.size(2) == 1 ? GateKind::kScalar : GateKind::kChannel;
  const DType dtype = args.q_RHK.dtype();
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    throw UnsupportedError(error_text(op, "q_RHK", "bf16 or f32 on cuda", dtype_name(dtype)));
  }
  sizes.is_f32 = dtype == DType::kF32;
  expect_head_size(op, direction, sizes.kind, sizes.is_f32, {sizes.K, sizes.V});
  bool is_uniform = true;
  for (int64_t s = 0; s < sizes.S; ++s) {
    sizes.J += divide_up(args.sequences.length(s), kChunk);
    is_uniform = is_uniform && args.sequences.length(s) == args.sequences.length(0);
  }
  if (is_uniform && sizes.S > 0) sizes.chunks_per_sequence = sizes.J / sizes.S;
  return sizes;
}

// Places of the tensors in `saved`; those that forward itself needs come first.
struct SavedLayout {
  int64_t gates = 0;
  int64_t feedback = 0;
  int64_t scores = 0;
  int64_t forward_bytes = 0;
  int64_t residual = 0;
  int64_t states = 0;
  int64_t bytes = 0;
};

SavedLayout saved_layout(const Sizes& sizes) {
  SavedLayout layout;
  int64_t at = 0;
  const auto place = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 256);
    return begin;
  };
  const int64_t blocks = sizes.J * sizes.G;
  if (sizes.is_f32) {
    layout.states = place(blocks * (kChunk / delta::kRecurrenceRows) * sizes.K * sizes.V * 4);
  } else {
    const bool is_channel = sizes.kind == GateKind::kChannel;
    layout.gates = place(blocks * (is_channel ? 1 : delta::kGateRows) * kChunk * 4);
    layout.feedback = place(blocks * delta::kLowerElements * 2);
    layout.scores = place(is_channel ? blocks * delta::kLowerElements * 2 : 0);
    layout.forward_bytes = at;
    layout.residual = place(blocks * kChunk * sizes.V * 2);
    layout.states = place(blocks * sizes.K * sizes.V * 2);
  }
  layout.bytes = at;
  return layout;
}

template <class T>
T* at_byte(const Tensor& bytes, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<unsigned char*>(bytes.raw()) + offset);
}

void expect_aligned(const char* op, const char* name, const Tensor& tensor) {
  if (!is_aligned(tensor, 16)) {
    throw UnsupportedError(error_text(op, name, "rows at multiples of 16 bytes",
                                      describe(tensor) + " with another address or stride"));
  }
}

// Scratch for the chunk numbers of sequences of unequal lengths; the rest of the map.
struct MapScratch {
  Tensor first_chunk;
  Tensor chunk_sequence;
};

MapScratch map_scratch(const Context& context, const Sizes& sizes) {
  if (sizes.chunks_per_sequence > 0) return {};
  return {context.arena->scratch(DType::kI32, {sizes.S + 1}),
          context.arena->scratch(DType::kI32, {sizes.J})};
}

delta::ChunkMap make_map(CudaDevice& device, const Sizes& sizes, const ops::Sequences& sequences,
                         const MapScratch& scratch) {
  delta::ChunkMap map;
  map.offsets = pointer<const int32_t>(sequences.device_offsets);
  map.chunks_per_sequence = static_cast<int>(sizes.chunks_per_sequence);
  if (sizes.chunks_per_sequence == 0) {
    delta::map_chunks(device, map.offsets, sizes.S, pointer<int32_t>(scratch.first_chunk),
                      pointer<int32_t>(scratch.chunk_sequence));
    map.first_chunk = pointer<const int32_t>(scratch.first_chunk);
    map.chunk_sequence = pointer<const int32_t>(scratch.chunk_sequence);
  }
  return map;
}

template <class Args>
delta::DeltaArguments chunk_arguments(const Sizes& sizes, const Args& args) {
  delta::DeltaArguments out;
  out.H = narrow<int>(sizes.H);
  out.G = narrow<int>(sizes.G);
  out.scale = static_cast<float>(args.scale);
  out.q = pointer<const Bf16>(args.q_RHK);
  out.k = pointer<const Bf16>(args.k_RHK);
  out.v = pointer<const Bf16>(args.v_RGV);
  out.v_stride = args.v_RGV.stride(0);
  out.g = pointer<const float>(args.g_RGK);
  out.beta = pointer<const float>(args.beta_RG);
  out.initial_state = pointer<const float>(args.initial_state_SGKV);
  return out;
}

template <class Args>
delta::RecurrenceArguments recurrence_arguments(const Sizes& sizes, const Args& args) {
  delta::RecurrenceArguments out;
  out.H = narrow<int>(sizes.H);
  out.G = narrow<int>(sizes.G);
  out.K = narrow<int>(sizes.K);
  out.V = narrow<int>(sizes.V);
  out.gate_width = narrow<int>(args.g_RGK.size(2));
  out.scale = static_cast<float>(args.scale);
  out.q = pointer<const float>(args.q_RHK);
  out.k = pointer<const float>(args.k_RHK);
  out.v = pointer<const float>(args.v_RGV);
  out.v_stride = args.v_RGV.stride(0);
  out.g = pointer<const float>(args.g_RGK);
  out.beta = pointer<const float>(args.beta_RG);
  out.initial_state = pointer<const float>(args.initial_state_SGKV);
  return out;
}

template <class T>
void step(CudaDevice& device, const Sizes& sizes, const ops::GatedDeltaRuleForward& args) {
  delta::StepArguments<T> out;
  out.H = narrow<int>(sizes.H);
  out.G = narrow<int>(sizes.G);
  out.gate_width = narrow<int>(args.g_RGK.size(2));
  out.scale = static_cast<float>(args.scale);
  out.q = pointer<const T>(args.q_RHK);
  out.k = pointer<const T>(args.k_RHK);
  out.v = pointer<const T>(args.v_RGV);
  out.v_stride = args.v_RGV.stride(0);
  out.g = pointer<const float>(args.g_RGK);
  out.beta = pointer<const float>(args.beta_RG);
  out.initial_state = pointer<const float>(args.initial_state_SGKV);
  out.final_state = pointer<float>(args.final_state_SGKV);
  out.o = pointer<T>(args.o_RGV);
  delta::step_forward(device, out, sizes.S, sizes.K, sizes.V);
}

// A place for rows of values that kernels cannot access 16 bytes at a time; undefined where they
// can.
Tensor packed_scratch(const Context& context, const Sizes& sizes, const Tensor& values_RGV) {
  if (is_aligned(values_RGV, 16)) return {};
  return context.arena->scratch(DType::kBF16, {sizes.R, sizes.G, sizes.V});
}

void forward_chunks(const Context& context, const Sizes& sizes,
                    const ops::GatedDeltaRuleForward& args) {
  const char* op = "gated_delta_rule_forward";
  expect_aligned(op, "q_RHK", args.q_RHK);
  expect_aligned(op, "k_RHK", args.k_RHK);
  if (args.g_RGK.size(2) > 1)
    expect_aligned(op, "g_RGK", Tensor(args.g_RGK.raw(), DType::kF32, {1}));
  expect_aligned(op, "o_RGV", args.o_RGV);
  expect_aligned(op, "saved", args.saved);
  const SavedLayout layout = saved_layout(sizes);
  const bool has_saved = args.saved.defined();
  const Tensor work =
      has_saved ? args.saved : context.arena->scratch(DType::kU8, {layout.forward_bytes});
  const MapScratch scratch = map_scratch(context, sizes);
  const Tensor packed_v = packed_scratch(context, sizes, args.v_RGV);
  if (context.arena->is_planning()) return;

  CudaDevice& device = cuda_device(context);
  delta::DeltaArguments out = chunk_arguments(sizes, args);
  if (packed_v.defined()) {
    out.v = pointer<const Bf16>(packed_v);
    out.v_stride = packed_v.stride(0);
    delta::copy_rows(device, pointer<Bf16>(packed_v), packed_v.stride(0),
                     pointer<const Bf16>(args.v_RGV), args.v_RGV.stride(0), sizes.R,
                     sizes.G * sizes.V);
  }
  out.map = make_map(device, sizes, args.sequences, scratch);
  out.gates = at_byte<float>(work, layout.gates);
  out.feedback = at_byte<__half>(work, layout.feedback);
  out.scores = at_byte<__half>(work, layout.scores);
  if (has_saved) {
    out.residual = at_byte<Bf16>(work, layout.residual);
    out.states = at_byte<Bf16>(work, layout.states);
  }
  out.final_state = pointer<float>(args.final_state_SGKV);
  out.o = pointer<Bf16>(args.o_RGV);
  if (sizes.kind == GateKind::kScalar) {
    delta::prepare_scalar(device, out, sizes.J, sizes.K);
  } else {
    delta::prepare_channel(device, out, sizes.J, sizes.K);
  }
  delta::scan_forward(device, out, sizes.kind, sizes.S, sizes.K, sizes.V);
}

void forward_f32(const Context& context, const Sizes& sizes,
                 const ops::GatedDeltaRuleForward& args) {
  const MapScratch scratch = map_scratch(context, sizes);
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  delta::RecurrenceArguments out = recurrence_arguments(sizes, args);
  out.map = make_map(device, sizes, args.sequences, scratch);
  if (args.saved.defined()) out.states = at_byte<float>(args.saved, saved_layout(sizes).states);
  out.final_state = pointer<float>(args.final_state_SGKV);
  out.o = pointer<float>(args.o_RGV);
  delta::recurrence_forward(device, out, sizes.S);
}

struct HeadScratch {
  Tensor dq_of_head;
  Tensor dk_of_head;
};

HeadScratch head_scratch(const Context& context, const Sizes& sizes) {
  const Shape shape = {sizes.R, sizes.G, sizes.K};
  return {context.arena->scratch(DType::kF32, shape), context.arena->scratch(DType::kF32, shape)};
}

delta::HeadSums head_sums(const Sizes& sizes, const HeadScratch& scratch) {
  return {pointer<const float>(scratch.dq_of_head),
          pointer<const float>(scratch.dk_of_head),
          sizes.R,
          sizes.H,
          sizes.G,
          sizes.K};
}

void backward_chunks(const Context& context, const Sizes& sizes,
                     const ops::GatedDeltaRuleBackward& args) {
  const char* op = "gated_delta_rule_backward";
  expect_aligned(op, "do_RGV", args.do_RGV);
  expect_aligned(op, "q_RHK", args.q_RHK);
  expect_aligned(op, "k_RHK", args.k_RHK);
  if (args.g_RGK.size(2) > 1)
    expect_aligned(op, "g_RGK", Tensor(args.g_RGK.raw(), DType::kF32, {1}));
  expect_aligned(op, "saved", args.saved);
  expect_aligned(op, "dq_RHK", args.dq_RHK);
  expect_aligned(op, "dk_RHK", args.dk_RHK);
  const MapScratch map = map_scratch(context, sizes);
  const Tensor d_states =
      context.arena->scratch(DType::kBF16, {sizes.J, sizes.G, sizes.V, sizes.K});
  const Tensor packed_dv = packed_scratch(context, sizes, args.dv_RGV);
  const bool sums_heads = sizes.kind == GateKind::kChannel && sizes.G > sizes.H;
  const HeadScratch heads = sums_heads ? head_scratch(context, sizes) : HeadScratch{};
  if (context.arena->is_planning()) return;

  CudaDevice& device = cuda_device(context);
  const SavedLayout layout = saved_layout(sizes);
  delta::DeltaArguments out = chunk_arguments(sizes, args);
  out.map = make_map(device, sizes, args.sequences, map);
  out.gates = at_byte<float>(args.saved, layout.gates);
  out.feedback = at_byte<__half>(args.saved, layout.feedback);
  out.scores = at_byte<__half>(args.saved, layout.scores);
  out.residual = at_byte<Bf16>(args.saved, layout.residual);
  out.states = at_byte<Bf16>(args.saved, layout.states);
  out.d_o = pointer<const Bf16>(args.do_RGV);
  out.d_final_state = pointer<const float>(args.d_final_state_SGKV);
  out.d_initial_state = pointer<float>(args.d_initial_state_SGKV);
  out.d_states = pointer<Bf16>(d_states);
  out.dq = pointer<Bf16>(args.dq_RHK);
  out.dk = pointer<Bf16>(args.dk_RHK);
  const Tensor& dv = packed_dv.defined() ? packed_dv : args.dv_RGV;
  out.dv = pointer<Bf16>(dv);
  out.dv_stride = dv.stride(0);
  out.dg = pointer<float>(args.dg_RGK);
  out.dbeta = pointer<float>(args.dbeta_RG);
  out.dq_of_head = pointer<float>(heads.dq_of_head);
  out.dk_of_head = pointer<float>(heads.dk_of_head);
  delta::scan_backward(device, out, sizes.kind, sizes.S, sizes.K, sizes.V);
  if (sizes.kind == GateKind::kScalar) {
    delta::gradients_scalar(device, out, sizes.J, sizes.K, sizes.V);
  } else {
    delta::gradients_channel(device, out, sizes.J, sizes.K, sizes.V);
    if (sums_heads) delta::sum_heads(device, head_sums(sizes, heads), out.dq, out.dk);
  }
  if (packed_dv.defined()) {
    delta::copy_rows(device, pointer<Bf16>(args.dv_RGV), args.dv_RGV.stride(0), out.dv,
                     out.dv_stride, sizes.R, sizes.G * sizes.V);
  }
}

// Scratch of the recurrence is bounded by running that many blocks at a time, more than the device
// holds at once.
constexpr int64_t kRecurrenceScratchBytes = int64_t{256} << 20;
constexpr int64_t kMinRecurrenceBlocks = 128;

void backward_f32(const Context& context, const Sizes& sizes,
                  const ops::GatedDeltaRuleBackward& args) {
  const MapScratch map = map_scratch(context, sizes);
  const int64_t block_bytes = delta::kRecurrenceRows * sizes.K * sizes.V * 4;
  const int64_t blocks = std::min(
      sizes.S * sizes.G, std::max(kRecurrenceScratchBytes / block_bytes, kMinRecurrenceBlocks));
  const Tensor replay =
      context.arena->scratch(DType::kF32, {blocks, delta::kRecurrenceRows, sizes.K, sizes.V});
  const bool sums_heads = sizes.G > sizes.H;
  const HeadScratch heads = sums_heads ? head_scratch(context, sizes) : HeadScratch{};
  if (context.arena->is_planning()) return;

  CudaDevice& device = cuda_device(context);
  delta::RecurrenceArguments out = recurrence_arguments(sizes, args);
  out.map = make_map(device, sizes, args.sequences, map);
  out.states = at_byte<float>(args.saved, saved_layout(sizes).states);
  out.d_o = pointer<const float>(args.do_RGV);
  out.d_final_state = pointer<const float>(args.d_final_state_SGKV);
  out.d_initial_state = pointer<float>(args.d_initial_state_SGKV);
  out.per_value_head = sums_heads;
  out.dq = pointer<float>(sums_heads ? heads.dq_of_head : args.dq_RHK);
  out.dk = pointer<float>(sums_heads ? heads.dk_of_head : args.dk_RHK);
  out.dv = pointer<float>(args.dv_RGV);
  out.dv_stride = args.dv_RGV.stride(0);
  out.dg = pointer<float>(args.dg_RGK);
  out.dbeta = pointer<float>(args.dbeta_RG);
  out.scratch = pointer<float>(replay);
  delta::recurrence_backward(device, out, sizes.S, blocks);
  if (sums_heads) {
    delta::sum_heads(device, head_sums(sizes, heads), pointer<float>(args.dq_RHK),
                     pointer<float>(args.dk_RHK));
  }
}

}  // namespace

void gated_delta_rule_forward(const Context& context, const ops::GatedDeltaRuleForward& args) {
  const Sizes sizes = sizes_of("gated_delta_rule_forward", DeltaDirection::kForward, args);
  if (sizes.S == 0) return;
  const Arena::ScratchScope scope(*context.arena);
  if (!args.saved.defined() && sizes.R == sizes.S) {  // one token each
    if (context.arena->is_planning()) return;
    CudaDevice& device = cuda_device(context);
    return sizes.is_f32 ? step<float>(device, sizes, args) : step<Bf16>(device, sizes, args);
  }
  return sizes.is_f32 ? forward_f32(context, sizes, args) : forward_chunks(context, sizes, args);
}

void gated_delta_rule_backward(const Context& context, const ops::GatedDeltaRuleBackward& args) {
  const Sizes sizes = sizes_of("gated_delta_rule_backward", DeltaDirection::kBackward, args);
  if (sizes.S == 0) return;
  const Arena::ScratchScope scope(*context.arena);
  return sizes.is_f32 ? backward_f32(context, sizes, args) : backward_chunks(context, sizes, args);
}

int64_t gated_delta_rule_saved_bytes(const Context& context,
                                     const ops::GatedDeltaRuleForward& args) {
  (void)context;
  return saved_layout(sizes_of("gated_delta_rule_saved_bytes", DeltaDirection::kForward, args)).bytes;
}

std::string delta_head_sizes(DeltaDirection direction, DeltaGates gates, DType dtype,
                             int64_t shared_bytes) {
  const GateKind kind = gates == DeltaGates::kPerHead ? GateKind::kScalar : GateKind::kChannel;
  return list_of(sizes_within(direction, kind, dtype == DType::kF32, shared_bytes));
}

}  // namespace deltatrain::backend::cuda
