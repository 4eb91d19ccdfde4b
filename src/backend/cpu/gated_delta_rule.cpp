// Sequences and heads of the gated delta rule: who works on what,
// and where `saved` lies. The chunks are in delta_chunk.h; calls that no
// backward follows step through short sequences token by token instead.
#include "ops/gated_delta_rule.h"

#include <cstring>

#include "backend/cpu/delta_chunk.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

// Up to this many tokens steps cost less than a chunk of 16 padded rows.
constexpr int64_t kStepTokens = 4;

DeltaSizes sizes_of(const Tensor& q_RHK, const Tensor& v_RGV, const Tensor& g_RGK) {
  const int64_t K = q_RHK.size(2);
  return delta_sizes(K, v_RGV.size(2), g_RGK.size(2) == K && K > 1);
}

// saved: the chunks of sequence 0, head 0; sequence 0, head 1; ...
struct SavedLayout {
  const ops::Sequences& sequences;
  int64_t num_heads;
  int64_t chunk_floats;

  static int64_t num_chunks(int64_t length) { return divide_up(length, kChunk); }
  // Chunks of all sequences before s.
  int64_t chunks_before(int64_t s) const {
    int64_t count = 0;
    for (int64_t i = 0; i < s; ++i) count += num_chunks(sequences.length(i));
    return count;
  }
  int64_t offset(int64_t chunks_before_sequence, int64_t s, int64_t head, int64_t chunk) const {
    const int64_t own = num_chunks(sequences.length(s));
    return (chunks_before_sequence * num_heads + head * own + chunk) * chunk_floats;
  }
};

// Working memory of one task.
struct ForwardMemory {
  float* workspace;
  float* state;        // [Kp, Vp]
  float* chunk_saved;  // where the call saves nothing
};

void load_state(const DeltaSizes& sizes, const float* from, float* state) {
  std::memset(state, 0, static_cast<size_t>(sizes.Kp * sizes.Vp) * sizeof(float));
  if (from == nullptr) return;
  for (int64_t c = 0; c < sizes.K; ++c) {
    std::memcpy(state + c * sizes.Vp, from + c * sizes.V,
                static_cast<size_t>(sizes.V) * sizeof(float));
  }
}

void store_state(const DeltaSizes& sizes, const float* state, float* to) {
  for (int64_t c = 0; c < sizes.K; ++c) {
    std::memcpy(to + c * sizes.V, state + c * sizes.Vp,
                static_cast<size_t>(sizes.V) * sizeof(float));
  }
}

// The recurrence itself. One pass over the state decays it and reads S^T k, a second one writes and
// reads S^T q. `state` is [K, V]; scratch holds V numbers.
void step(const DeltaSizes& sizes, const float* q, const float* k, const float* v, const float* g,
          float beta, float scale, float* state, float* scratch, float* out) {
  const int64_t V = sizes.V;
  std::fill(scratch, scratch + V, 0.0F);
  for (int64_t c = 0; c < sizes.K; ++c) {
    const float decay = exp_f32(g[sizes.per_channel ? c : 0]);
    const float k_c = k[c];
    float* row = state + c * V;
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) {
      row[i] *= decay;
      scratch[i] += k_c * row[i];
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < V; ++i) {
    scratch[i] = beta * (v[i] - scratch[i]);
    out[i] = 0.0F;
  }
  for (int64_t c = 0; c < sizes.K; ++c) {
    const float q_c = scale * q[c];
    const float k_c = k[c];
    float* row = state + c * V;
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) {
      row[i] += k_c * scratch[i];
      out[i] += q_c * row[i];
    }
  }
}

struct HeadPointers {
  const float* q;
  const float* k;
  int64_t qk_stride;
  const float* v;
  int64_t v_stride;
  const float* g;
  int64_t g_stride;
  const float* beta;
  int64_t beta_stride;
};

// Row `row` of value head `head`.
template <class Args>
HeadPointers head_at(const Args& args, int64_t head, int64_t row) {
  const int64_t H = args.q_RHK.size(1);
  const int64_t K = args.q_RHK.size(2);
  const int64_t G = args.v_RGV.size(1);
  const int64_t V = args.v_RGV.size(2);
  const int64_t key_head = head / (G / H);
  const int64_t g_width = args.g_RGK.size(2);
  HeadPointers p = {};
  p.qk_stride = H * K;
  p.q = args.q_RHK.template data<float>() + row * p.qk_stride + key_head * K;
  p.k = args.k_RHK.template data<float>() + row * p.qk_stride + key_head * K;
  p.v_stride = args.v_RGV.stride(0);
  p.v = args.v_RGV.template data<float>() + row * p.v_stride + head * V;
  p.g_stride = G * g_width;
  p.g = args.g_RGK.template data<float>() + row * p.g_stride + head * g_width;
  p.beta_stride = G;
  p.beta = args.beta_RG.template data<float>() + row * G + head;
  return p;
}

ChunkInput chunk_input(const HeadPointers& p, int64_t num_rows, double scale) {
  return {p.q,
          p.k,
          p.qk_stride,
          p.v,
          p.v_stride,
          p.g,
          p.g_stride,
          p.beta,
          p.beta_stride,
          num_rows,
          static_cast<float>(scale)};
}

void forward_by_steps(const ops::GatedDeltaRuleForward& args, const DeltaSizes& sizes, int64_t s,
                      int64_t head, float* scratch) {
  const int64_t G = args.v_RGV.size(1);
  const int64_t state_size = sizes.K * sizes.V;
  const float* initial = args.initial_state_SGKV.data<float>();
  float* final_state = args.final_state_SGKV.data<float>();
  // The state lives in the caller's memory where there is one.
  float* state =
      final_state != nullptr ? final_state + (s * G + head) * state_size : scratch + sizes.Vp;
  if (initial == nullptr) {
    std::fill(state, state + state_size, 0.0F);
  } else if (initial != final_state) {
    std::memcpy(state, initial + (s * G + head) * state_size,
                static_cast<size_t>(state_size) * sizeof(float));
  }
  float* out = args.o_RGV.data<float>();
  for (int64_t row = args.sequences.begin(s); row < args.sequences.end(s); ++row) {
    const HeadPointers p = head_at(args, head, row);
    step(sizes, p.q, p.k, p.v, p.g, *p.beta, static_cast<float>(args.scale), state, scratch,
         out + (row * G + head) * sizes.V);
  }
}

void forward_by_chunks(const ops::GatedDeltaRuleForward& args, const DeltaSizes& sizes, int64_t s,
                       int64_t head, int64_t chunks_before, const ForwardMemory& memory) {
  const int64_t G = args.v_RGV.size(1);
  const int64_t state_size = sizes.K * sizes.V;
  const SavedLayout layout = {args.sequences, G, saved_floats(sizes)};
  float* saved_base =
      args.saved.defined() ? reinterpret_cast<float*>(args.saved.data<uint8_t>()) : nullptr;
  const float* initial = args.initial_state_SGKV.data<float>();
  load_state(sizes, initial == nullptr ? nullptr : initial + (s * G + head) * state_size,
             memory.state);
  float* out = args.o_RGV.data<float>();
  const int64_t length = args.sequences.length(s);
  for (int64_t chunk = 0; chunk < SavedLayout::num_chunks(length); ++chunk) {
    const int64_t first = args.sequences.begin(s) + chunk * kChunk;
    const int64_t rows = std::min(kChunk, length - chunk * kChunk);
    ChunkSaved saved = saved_at(sizes, memory.chunk_saved);
    if (saved_base != nullptr) {
      saved = saved_at(sizes, saved_base + layout.offset(chunks_before, s, head, chunk));
      std::memcpy(saved.state, memory.state,
                  static_cast<size_t>(sizes.Kp * sizes.Vp) * sizeof(float));
    }
    delta_chunk_forward(sizes, chunk_input(head_at(args, head, first), rows, args.scale),
                        memory.workspace, memory.state, saved, out + (first * G + head) * sizes.V,
                        G * sizes.V);
  }
  if (args.final_state_SGKV.defined()) {
    store_state(sizes, memory.state,
                args.final_state_SGKV.data<float>() + (s * G + head) * state_size);
  }
}

// All chunks of one value head of one sequence, last to first.
void backward_head(const ops::GatedDeltaRuleBackward& args, const DeltaSizes& sizes, int64_t s,
                   int64_t head, int64_t chunks_before, float* workspace, float* d_state) {
  const int64_t H = args.q_RHK.size(1);
  const int64_t G = args.v_RGV.size(1);
  const int64_t heads_per_key = G / H;
  const int64_t state_size = sizes.K * sizes.V;
  const SavedLayout layout = {args.sequences, G, saved_floats(sizes)};
  auto* saved_base = reinterpret_cast<float*>(args.saved.data<uint8_t>());
  const float* d_final = args.d_final_state_SGKV.data<float>();
  load_state(sizes, d_final == nullptr ? nullptr : d_final + (s * G + head) * state_size, d_state);
  const int64_t length = args.sequences.length(s);
  for (int64_t chunk = SavedLayout::num_chunks(length) - 1; chunk >= 0; --chunk) {
    const int64_t first = args.sequences.begin(s) + chunk * kChunk;
    const int64_t rows = std::min(kChunk, length - chunk * kChunk);
    const HeadPointers p = head_at(args, head, first);
    const int64_t g_width = args.g_RGK.size(2);
    ChunkGradients out = {};
    out.d_out_stride = G * sizes.V;
    out.d_out = args.do_RGV.data<float>() + first * out.d_out_stride + head * sizes.V;
    out.dqk_stride = p.qk_stride;
    out.dq = args.dq_RHK.data<float>() + first * p.qk_stride + head / heads_per_key * sizes.K;
    out.dk = args.dk_RHK.data<float>() + first * p.qk_stride + head / heads_per_key * sizes.K;
    out.adds_qk = head % heads_per_key != 0;
    out.dv_stride = args.dv_RGV.stride(0);
    out.dv = args.dv_RGV.data<float>() + first * out.dv_stride + head * sizes.V;
    out.dg_stride = G * g_width;
    out.dg = args.dg_RGK.data<float>() + first * out.dg_stride + head * g_width;
    out.dbeta_stride = G;
    out.dbeta = args.dbeta_RG.data<float>() + first * G + head;
    delta_chunk_backward(sizes, chunk_input(p, rows, args.scale), workspace, d_state,
                         saved_at(sizes, saved_base + layout.offset(chunks_before, s, head, chunk)),
                         out);
  }
  if (args.d_initial_state_SGKV.defined()) {
    store_state(sizes, d_state,
                args.d_initial_state_SGKV.data<float>() + (s * G + head) * state_size);
  }
}

}  // namespace

int64_t gated_delta_rule_saved_bytes(const Context&, const ops::GatedDeltaRuleForward& args) {
  const DeltaSizes sizes = sizes_of(args.q_RHK, args.v_RGV, args.g_RGK);
  const SavedLayout layout = {args.sequences, args.v_RGV.size(1), saved_floats(sizes)};
  return layout.chunks_before(args.sequences.num()) * layout.num_heads * layout.chunk_floats *
         static_cast<int64_t>(sizeof(float));
}

void gated_delta_rule_forward(const Context& context, const ops::GatedDeltaRuleForward& args) {
  const DeltaSizes sizes = sizes_of(args.q_RHK, args.v_RGV, args.g_RGK);
  const int64_t G = args.v_RGV.size(1);
  const int64_t workspace_floats = forward_workspace_floats(sizes);
  const int64_t state_floats = round_up(sizes.Kp * sizes.Vp, kLanes);
  const int64_t thread_floats =
      workspace_floats + state_floats + round_up(saved_floats(sizes), kLanes) + sizes.Vp;
  const Arena::ScratchScope scope(*context.arena);
  float* scratch =
      context.arena->scratch(DType::kF32, {max_threads(), thread_floats}).data<float>();
  int32_t* chunks_before =
      context.arena->scratch(DType::kI32, {args.sequences.num()}).data<int32_t>();
  if (context.arena->is_planning()) return;
  int64_t num_chunks = 0;
  for (int64_t s = 0; s < args.sequences.num(); ++s) {
    chunks_before[s] = narrow<int32_t>(num_chunks);
    num_chunks += SavedLayout::num_chunks(args.sequences.length(s));
  }
  parallel_for(args.sequences.num() * G, [&](int64_t task) {
    const int64_t s = task / G;
    const int64_t head = task % G;
    float* own = scratch + thread_index() * thread_floats;
    if (!args.saved.defined() && args.sequences.length(s) <= kStepTokens) {
      forward_by_steps(args, sizes, s, head, own);
    } else {
      const ForwardMemory memory = {own, own + workspace_floats,
                                    own + workspace_floats + state_floats};
      forward_by_chunks(args, sizes, s, head, chunks_before[s], memory);
    }
  });
}

void gated_delta_rule_backward(const Context& context, const ops::GatedDeltaRuleBackward& args) {
  const DeltaSizes sizes = sizes_of(args.q_RHK, args.v_RGV, args.g_RGK);
  const int64_t H = args.q_RHK.size(1);
  const int64_t heads_per_key = args.v_RGV.size(1) / H;
  const int64_t workspace_floats = backward_workspace_floats(sizes);
  const int64_t thread_floats = workspace_floats + round_up(sizes.Kp * sizes.Vp, kLanes);
  const Arena::ScratchScope scope(*context.arena);
  float* scratch =
      context.arena->scratch(DType::kF32, {max_threads(), thread_floats}).data<float>();
  int32_t* chunks_before =
      context.arena->scratch(DType::kI32, {args.sequences.num()}).data<int32_t>();
  if (context.arena->is_planning()) return;
  int64_t num_chunks = 0;
  for (int64_t s = 0; s < args.sequences.num(); ++s) {
    chunks_before[s] = narrow<int32_t>(num_chunks);
    num_chunks += SavedLayout::num_chunks(args.sequences.length(s));
  }
  // The value heads of a key head follow one another
  // on one thread: their dq and dk add up in order.
  parallel_for(args.sequences.num() * H, [&](int64_t task) {
    float* own = scratch + thread_index() * thread_floats;
    const int64_t s = task / H;
    for (int64_t i = 0; i < heads_per_key; ++i) {
      backward_head(args, sizes, s, task % H * heads_per_key + i, chunks_before[s], own,
                    own + workspace_floats);
    }
  });
}

}  // namespace deltatrain::backend::cpu
