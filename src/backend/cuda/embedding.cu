// Token embedding. Backward sorts the ids (a stable sort, so that the rows of an id stay in order)
// and sums stretches of equal ids: no two threads ever add to the same place.
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

constexpr int kBlock = 128;
constexpr int kChunk = 64;      // sorted positions that one block sums
constexpr int kRowsAtOnce = 8;  // rows loaded before the first is added

// Grid: one block per row. Bytes per row: one row of the table in, one out.
template <class T, class To, int kVector>
__global__ void __launch_bounds__(kBlock)
    embedding_forward_kernel(const int32_t* ids, const T* __restrict__ weight, To* __restrict__ y,
                             int64_t D) {
  const int64_t row = blockIdx.x;
  const int32_t id = ids[row];
  const T* from = weight + static_cast<int64_t>(id) * D;
#pragma unroll 2
  for (int64_t i = threadIdx.x; i < D / kVector; i += kBlock) {
    Pack<T, kVector> values;
    values.set_zero();
    if (id >= 0) values = load_pack<T, kVector>(from + i * kVector);
    if constexpr (std::is_same_v<T, To>) {
      store_pack(y + row * D + i * kVector, values);
    } else {
      float wide[kVector];
      values.unpack(wide);
      store_values(y + row * D + i * kVector, wide);
    }
  }
}

// rows[r] = r
__global__ void __launch_bounds__(kBlock) embedding_backward_rows_kernel(int32_t* rows, int64_t R) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (r < R) rows[r] = static_cast<int32_t>(r);
}

// Grid: chunks of kChunk sorted positions x column blocks, column blocks first. A stretch of equal
// ids that lies within the chunk is added to dweight here. One that reaches over an end of the
// chunk goes to edge_sums: entry 0 of the chunk where it came in from the chunk before, entry 1
// where it begins here. Bytes: dy once, dweight of the ids that occur in and out.
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock)
    embedding_backward_chunks_kernel(const int32_t* sorted_ids, const int32_t* sorted_rows,
                                     const T* __restrict__ dy, float* dweight, float* edge_sums,
                                     int64_t R, int64_t D, int64_t column_blocks) {
  __shared__ int32_t s_ids[kChunk];
  __shared__ int32_t s_rows[kChunk];
  const int64_t chunk = blockIdx.x / column_blocks;
  const int64_t column = ((blockIdx.x - chunk * column_blocks) * kBlock + threadIdx.x) * kVector;
  const int64_t begin = chunk * kChunk;
  const int count = static_cast<int>(begin + kChunk < R ? kChunk : R - begin);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock) {
    s_ids[i] = sorted_ids[begin + i];
    s_rows[i] = sorted_rows[begin + i];
  }
  __syncthreads();
  if (column >= D) return;
  const bool comes_in = chunk > 0 && sorted_ids[begin - 1] == s_ids[0];
  const bool goes_on = begin + count < R && sorted_ids[begin + count] == s_ids[count - 1];

  int first = 0;
  while (first < count) {
    const int32_t id = s_ids[first];
    int end = first + 1;
    while (end < count && s_ids[end] == id) ++end;
    float sum[kVector] = {};
    for (int base = first; base < end; base += kRowsAtOnce) {
      Pack<T, kVector> in[kRowsAtOnce];
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        if (base + j < end)
          in[j] = load_pack<T, kVector, Reuse::kStreaming>(dy + s_rows[base + j] * D + column);
      }
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        if (base + j >= end) continue;
        float v[kVector];
        in[j].unpack(v);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[e] += v[e];
      }
    }
    const bool from_before = first == 0 && comes_in;
    const bool into_next = end == count && goes_on;
    if (from_before || into_next) {
      store_values(edge_sums + (chunk * 2 + (from_before ? 0 : 1)) * D + column, sum);
    } else {
      float* target = dweight + static_cast<int64_t>(id) * D + column;
      float old[kVector];
      load_values(target, old);
#pragma unroll
      for (int e = 0; e < kVector; ++e) old[e] += sum[e];
      store_values(target, old);
    }
    first = end;
  }
}

// Grid as above. The chunk where a stretch begins that goes on into later chunks adds up its parts
// in order.
template <int kVector>
__global__ void __launch_bounds__(kBlock)
    embedding_backward_edges_kernel(const int32_t* sorted_ids, const float* __restrict__ edge_sums,
                                    float* dweight, int64_t R, int64_t D, int64_t column_blocks) {
  const int64_t chunk = blockIdx.x / column_blocks;
  const int64_t column = ((blockIdx.x - chunk * column_blocks) * kBlock + threadIdx.x) * kVector;
  const int64_t begin = chunk * kChunk;
  const int64_t last = begin + kChunk - 1;
  if (column >= D || last + 1 >= R) return;
  const int32_t id = sorted_ids[last];
  if (sorted_ids[last + 1] != id) return;                // ends here
  if (begin > 0 && sorted_ids[begin - 1] == id) return;  // began earlier
  float sum[kVector];
  load_values(edge_sums + (chunk * 2 + 1) * D + column, sum);
  for (int64_t next = chunk + 1; next * kChunk < R && sorted_ids[next * kChunk] == id; ++next) {
    float v[kVector];
    load_values(edge_sums + next * 2 * D + column, v);
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum[e] += v[e];
  }
  float* target = dweight + static_cast<int64_t>(id) * D + column;
  float old[kVector];
  load_values(target, old);
#pragma unroll
  for (int e = 0; e < kVector; ++e) old[e] += sum[e];
  store_values(target, old);
}

// Bytes of the sort's own scratch for R ids. Asked without a device where a step is planned, so it
// is an upper bound by the sort's documented needs: two more copies of keys and values, and
// counters.
int64_t sort_scratch_bytes(int64_t R) { return R * 16 + (int64_t{8} << 20); }

}  // namespace

void embedding_forward(const Context& context, const ops::EmbeddingForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.ids_R.num_elements();
  const int64_t D = args.weight_ND.size(1);
  with_activation_type("embedding_forward", args.weight_ND.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const bool vectors = D % kFull == 0 && all_aligned(args.weight_ND, args.y_RD);
    const auto run = [&](auto to) {
      using To = typename decltype(to)::type;
      launch(device, "embedding_forward_kernel",
             vectors ? embedding_forward_kernel<T, To, kFull> : embedding_forward_kernel<T, To, 1>,
             R, kBlock, 0, pointer<const int32_t>(args.ids_R), pointer<const T>(args.weight_ND),
             pointer<To>(args.y_RD), D);
    };
    if (args.y_RD.dtype() == DType::kF32) return run(ElementType<float>{});
    run(element);
  });
}

void embedding_backward(const Context& context, const ops::EmbeddingBackward& args) {
  const int64_t R = args.ids_R.num_elements();
  const int64_t D = args.dy_RD.size(1);
  const int64_t chunks = divide_up(R, kChunk);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor rows = context.arena->scratch(DType::kI32, {R});
  const Tensor sorted_rows = context.arena->scratch(DType::kI32, {R});
  const Tensor sorted_ids = context.arena->scratch(DType::kI32, {R});
  const Tensor sort_scratch = context.arena->scratch(DType::kU8, {sort_scratch_bytes(R)});
  const Tensor edge_sums = context.arena->scratch(DType::kF32, {chunks * 2, D});
  if (context.arena->is_planning() || R == 0) return;
  CudaDevice& device = cuda_device(context);
  DELTATRAIN_CHECK(R <= INT_MAX, std::to_string(R));
  int id_bits = 1;
  while ((int64_t{1} << id_bits) < args.dweight_ND.size(0)) ++id_bits;

  launch(device, "embedding_backward_rows_kernel", embedding_backward_rows_kernel,
         divide_up(R, kBlock), kBlock, 0, pointer<int32_t>(rows), R);
  const auto sort = [&](void* scratch, size_t& bytes) {
    check_cuda(cub::DeviceRadixSort::SortPairs(
                   scratch, bytes, pointer<const int32_t>(args.ids_R), pointer<int32_t>(sorted_ids),
                   pointer<const int32_t>(rows), pointer<int32_t>(sorted_rows), static_cast<int>(R),
                   0, id_bits, device.stream()),
               "cub::DeviceRadixSort::SortPairs");
  };
  size_t sort_bytes = 0;
  sort(nullptr, sort_bytes);
  DELTATRAIN_CHECK(sort_bytes <= static_cast<size_t>(sort_scratch.num_bytes()),
                   std::to_string(sort_bytes));
  sort(sort_scratch.raw(), sort_bytes);
  device.check_launch("cub::DeviceRadixSort::SortPairs");

  with_activation_type("embedding_backward", args.dy_RD.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kFull = 16 / static_cast<int>(sizeof(T));
    const auto run = [&](auto chunks_kernel, auto edges_kernel, int vector) {
      const int64_t column_blocks = divide_up(D, kBlock * vector);
      launch(device, "embedding_backward_chunks_kernel", chunks_kernel, chunks * column_blocks,
             kBlock, 0, pointer<const int32_t>(sorted_ids), pointer<const int32_t>(sorted_rows),
             pointer<const T>(args.dy_RD), pointer<float>(args.dweight_ND),
             pointer<float>(edge_sums), R, D, column_blocks);
      launch(device, "embedding_backward_edges_kernel", edges_kernel, chunks * column_blocks,
             kBlock, 0, pointer<const int32_t>(sorted_ids), pointer<const float>(edge_sums),
             pointer<float>(args.dweight_ND), R, D, column_blocks);
    };
    if (D % kFull == 0 && all_aligned(args.dy_RD, args.dweight_ND)) {
      run(embedding_backward_chunks_kernel<T, kFull>, embedding_backward_edges_kernel<kFull>,
          kFull);
    } else {
      run(embedding_backward_chunks_kernel<T, 1>, embedding_backward_edges_kernel<1>, 1);
    }
  });
}

}  // namespace deltatrain::backend::cuda
