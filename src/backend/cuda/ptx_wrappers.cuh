// Inline PTX: what a matrix unit and an asynchronous copy need. Everything here has a counterpart
// or a plain replacement on other devices; no other header knows the instructions, and
// hopper/ptx_wrappers.cuh alone those that have none.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace deltatrain::backend::cuda {

// --- Products of 16-bit matrices, one per warp.
//
// d[16 x 8] += a[16 x 16] b[16 x 8], bf16 operands, f32 sums. With g = lane / 4 and t = lane % 4:
//
//   a: words 0 to 3 hold (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with its right
//      neighbour
//   b: words 0 and 1 hold (2t, g), (2t + 8, g), each with its lower neighbour
//   d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
__device__ __forceinline__ void mma_16x8x16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with fp16 operands.
__device__ __forceinline__ void mma_16x8x16_fp16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// An 8 x 8 tile of 16-bit elements held as (g, 2t), (g, 2t + 1), turned into its transpose held
// alike.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t word) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(word));
  return transposed;
}

// Four 8 x 8 tiles of 16-bit elements from shared memory; lane l gives the address of row l % 8 of
// tile l / 8 and receives, of each tile, (g, 2t) and (g, 2t + 1); with `transposed` (2t, g) and (2t
// + 1, g).
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void* row_in_shared) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row_in_shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&words)[4],
                                                         const void* row_in_shared) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row_in_shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// --- Asynchronous copies from global to shared memory.

// 16 bytes; writes zeros and reads nothing where `valid` is false.
__device__ __forceinline__ void copy_async_16(void* to_shared, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  const uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from),
               "r"(bytes)
               : "memory");
}

// 4 bytes, likewise.
__device__ __forceinline__ void copy_async_4(void* to_shared, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  const uint32_t bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address), "l"(from),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most kPending of the groups committed by this thread are still under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Fetches the line of an address into the last cache level.
__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

// --- Kernels that begin early (launch_early). Nothing before 9.0, where none does.

// From here on what the kernels ahead of this one have written may be read, and what they read be overwritten.
__device__ __forceinline__ void wait_for_kernels_ahead() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The next kernel may begin once every block has come here (or ended).
__device__ __forceinline__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// --- Special functions.

// 2^x to 2 units in the last place; 0 below the normal range.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace deltatrain::backend::cuda
