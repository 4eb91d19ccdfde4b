// The launches of the gated delta rule, one function per file. `args` and the sizes are checked.
#pragma once

#include <cstdint>

#include "backend/cuda/gated_delta_rule/chunks.cuh"

namespace deltatrain::backend::cuda {

class CudaDevice;

namespace delta {

// Fills first_chunk [S + 1] and chunk_sequence [J] from the offsets on the device.
void map_chunks(CudaDevice& device, const int32_t* offsets, int64_t S, int32_t* first_chunk,
                int32_t* chunk_sequence);

// to[r, x] = from[r, x] for x < width, without any alignment.
void copy_rows(CudaDevice& device, Bf16* to, int64_t to_stride, const Bf16* from,
               int64_t from_stride, int64_t rows, int64_t width);

void prepare_scalar(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks, int64_t K);
void prepare_channel(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks, int64_t K);

// kChannel: one decay per key channel (KDA), else one per token (GDN).
enum class GateKind : uint8_t { kScalar, kChannel };

void scan_forward(CudaDevice& device, const DeltaArguments& args, GateKind kind, int64_t S,
                  int64_t K, int64_t V);
void scan_backward(CudaDevice& device, const DeltaArguments& args, GateKind kind, int64_t S,
                   int64_t K, int64_t V);

void gradients_scalar(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks, int64_t K,
                      int64_t V);
void gradients_channel(CudaDevice& device, const DeltaArguments& args, int64_t num_chunks,
                       int64_t K, int64_t V);

// Bytes of shared memory of a block.
int64_t prepare_scalar_shared_bytes(int64_t K);
int64_t prepare_channel_shared_bytes(int64_t K);
int64_t scan_forward_shared_bytes(GateKind kind, int64_t K, int64_t V);
int64_t scan_backward_shared_bytes(GateKind kind, int64_t K, int64_t V);
int64_t gradients_scalar_shared_bytes(int64_t K, int64_t V);
int64_t gradients_channel_shared_bytes(int64_t K, int64_t V);
int64_t recurrence_forward_shared_bytes(int64_t K);
int64_t recurrence_backward_shared_bytes(int64_t K, int64_t V);

// dq, dk [R, H, K] from one of each per value head, added up in order.
struct HeadSums {
  const float* dq_of_head = nullptr;  // [R, G, K]
  const float* dk_of_head = nullptr;
  int64_t R = 0;
  int64_t H = 0;
  int64_t G = 0;
  int64_t K = 0;
};
void sum_heads(CudaDevice& device, const HeadSums& sums, Bf16* dq, Bf16* dk);
void sum_heads(CudaDevice& device, const HeadSums& sums, float* dq, float* dk);

// One token per sequence; T is the dtype of q, k, v and o.
template <class T>
struct StepArguments {
  int H = 0;
  int G = 0;
  int gate_width = 1;
  float scale = 1;
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t v_stride = 0;
  const float* g = nullptr;
  const float* beta = nullptr;
  const float* initial_state = nullptr;
  float* final_state = nullptr;
  T* o = nullptr;
};
void step_forward(CudaDevice& device, const StepArguments<Bf16>& args, int64_t S, int64_t K,
                  int64_t V);
void step_forward(CudaDevice& device, const StepArguments<float>& args, int64_t S, int64_t K,
                  int64_t V);

// The recurrence in f32.
inline constexpr int kRecurrenceRows = 32;  // tokens between saved states; divides kChunk
struct RecurrenceArguments {
  ChunkMap map;
  int H = 0;
  int G = 0;
  int K = 0;
  int V = 0;
  int gate_width = 1;
  float scale = 1;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t v_stride = 0;
  const float* g = nullptr;
  const float* beta = nullptr;
  float* states = nullptr;  // [2 J, G, K, V]: the state before every 32 tokens of a sequence
  const float* initial_state = nullptr;
  float* final_state = nullptr;
  float* o = nullptr;
  const float* d_o = nullptr;
  const float* d_final_state = nullptr;
  float* d_initial_state = nullptr;
  float* dq = nullptr;
  float* dk = nullptr;
  bool per_value_head = false;  // dq and dk are [R, G, K]
  float* dv = nullptr;
  int64_t dv_stride = 0;
  float* dg = nullptr;
  float* dbeta = nullptr;
  float* scratch = nullptr;  // [blocks at once, 32, K, V]
  int64_t first_block = 0;
};
void recurrence_forward(CudaDevice& device, const RecurrenceArguments& args, int64_t S);
void recurrence_backward(CudaDevice& device, const RecurrenceArguments& args, int64_t S,
                         int64_t blocks_at_once);

}  // namespace delta
}  // namespace deltatrain::backend::cuda
