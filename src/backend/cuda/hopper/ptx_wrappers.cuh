// Inline PTX of compute capability 9.0: products by groups of four warps with operands in shared
// memory, and bulk copies that complete on a barrier. No other header knows these instructions.
#pragma once

#include <cstdint>

// What the group products need: machine code for exactly 9.0 ("90a"). Bulk copies and barriers need
// 9.0 or later.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define DELTATRAIN_HAS_GROUP_PRODUCTS 1
#else
#define DELTATRAIN_HAS_GROUP_PRODUCTS 0
#endif

namespace deltatrain::backend::cuda::hopper {

inline constexpr int kWarpsPerGroup = 4;  // warps that compute a product together

// --- Tiles as operands.
//
// A tile has rows of 128 bytes (64 elements of 16 bits) whose 16-byte chunks are stored at chunk ^
// (row % 8), and starts at a multiple of 1024 bytes: attention's tiles.cuh. One description serves
// both readings of it: rows along the output with the summed index inside a row, and (`transposed`)
// rows along the summed index.

// Operands hold 16 values of the summed index: the next ones lie 32 bytes further along a row, or
// 16 rows on.
inline constexpr uint64_t kNextInRow = 32 >> 4;
inline constexpr uint64_t kNextRows = 16 * 128 >> 4;

__device__ __forceinline__ uint64_t describe_tile(const void* tile) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;  // distance of groups of eight rows
  constexpr uint64_t kOneBlock = uint64_t{1} << 16;           // no second block of 64 columns
  return kSwizzle128 | kEightRows | kOneBlock | ((address & 0x3ffffU) >> 4);
}

// Several such tiles of kRows rows each, one after the other, as one of `transposed` reading whose columns go on from
// tile to tile.
template <int kRows>
__device__ __forceinline__ uint64_t describe_tiles(const void* tiles) {
  constexpr uint64_t kOneBlock = uint64_t{1} << 16;
  constexpr uint64_t kNextTile = uint64_t{kRows * 128 >> 4} << 16;
  return (describe_tile(tiles) & ~kOneBlock) | kNextTile;
}

// --- Order. Before the first product after its registers or tiles were written: begin_products
// (and publish_tiles by the writers of tiles, before a barrier). Products run until wait_products;
// then settle() each result.

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Until at most kPending committed groups are still under way.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
template <int kN>
__device__ __forceinline__ void settle(float (&result)[kN]) {
#pragma unroll
  for (float& value : result) asm volatile("" : "+f"(value)::"memory");
}
// Values that are computed here, whether or not somebody stores them.
template <int kN>
__device__ __forceinline__ void settle(uint32_t (&words)[kN]) {
#pragma unroll
  for (uint32_t& word : words) asm volatile("" : "+r"(word));
}
// Shared memory written by ordinary stores becomes visible to products and bulk copies.
__device__ __forceinline__ void publish_tiles() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// --- d[64 x 64] (+)= a[64 x 16] b[16 x 64], bf16 operands, f32 sums. The four warps own 16 rows of
// d each; within them d[4 j ..] are the 16 x 8 results of ptx_wrappers.cuh for columns 8 j.., and a
// in registers is laid out as there.

#define DELTATRAIN_RESULT_32(d)                                                                   \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define DELTATRAIN_RESULT_32_NAMES                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

// Both operands are tiles. `add` false: d is overwritten.
template <bool kTransposedA, bool kTransposedB>
__device__ __forceinline__ void product_64x64x16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DELTATRAIN_RESULT_32_NAMES
      ", %32, %33, p, 1, 1, %35, %36;\n}\n"
      : DELTATRAIN_RESULT_32(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)), "n"(kTransposedA ? 1 : 0),
        "n"(kTransposedB ? 1 : 0));
#endif
}

// a is in registers.
template <bool kTransposedB>
__device__ __forceinline__ void product_64x64x16(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                                 bool add) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " DELTATRAIN_RESULT_32_NAMES
      ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : DELTATRAIN_RESULT_32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)),
        "n"(kTransposedB ? 1 : 0));
#endif
}

// --- d[64 x 256] (+)= a[64 x 16] b[16 x 256], likewise. Rows of b that lie along the output fill 256 rows of one
// tile; b that is `transposed` is four tiles of 64 columns, described by describe_tiles.

#define DELTATRAIN_RESULT_16(d, i)                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]),        \
      "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define DELTATRAIN_RESULT_128(d)                                                             \
  DELTATRAIN_RESULT_16(d, 0), DELTATRAIN_RESULT_16(d, 16), DELTATRAIN_RESULT_16(d, 32),      \
      DELTATRAIN_RESULT_16(d, 48), DELTATRAIN_RESULT_16(d, 64), DELTATRAIN_RESULT_16(d, 80), \
      DELTATRAIN_RESULT_16(d, 96), DELTATRAIN_RESULT_16(d, 112)
#define DELTATRAIN_RESULT_128_NAMES                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
  "%127}"

template <bool kTransposedB>
__device__ __forceinline__ void product_64x256x16(float (&d)[128], uint64_t a, uint64_t b,
                                                  bool add) {
#if DELTATRAIN_HAS_GROUP_PRODUCTS
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " DELTATRAIN_RESULT_128_NAMES
      ", %128, %129, p, 1, 1, 0, %131;\n}\n"
      : DELTATRAIN_RESULT_128(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)), "n"(kTransposedB ? 1 : 0));
#endif
}

// --- Barriers in shared memory on which bulk copies complete.

__device__ __forceinline__ uint32_t shared_address(const void* in_shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

// One arrival completes a phase, together with the bytes it announces.
__device__ __forceinline__ void init_copy_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

// Starts a copy of `bytes` (a multiple of 16, addresses too) whose end completes the barrier's
// phase.
__device__ __forceinline__ void copy_bulk(void* to_shared, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(shared_address(to_shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Waits for the end of the phase with this parity: 0 for the first, 1 for the second, 0 for the
// third...
__device__ __forceinline__ void wait_copy(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// --- Rings of tiles that one warp fills and others empty: a barrier of each kind per place of the ring.

// A phase completes after `arrivals` arrivals and all bytes that they announce.
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// One arrival that announces bytes of copies to come.
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// One arrival at this barrier of the cluster's block `rank`.
__device__ __forceinline__ void arrive_in_cluster(uint64_t* barrier, int rank) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#endif
}

// --- Copies of boxes of matrices that a tensor map describes; what lies outside the matrix is zeros.

// The box at this column and row, to this block.
__device__ __forceinline__ void copy_box(void* to_shared, const void* map, int column, int row,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];\n" ::"r"(shared_address(to_shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

// The same to every block of the cluster in `blocks` (a bit each), at the same place and barrier of each.
__device__ __forceinline__ void copy_box_to_all(void* to_shared, const void* map, int column,
                                                int row, uint64_t* barrier, uint16_t blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(shared_address(to_shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
#endif
}

// --- Blocks of a cluster.

// This block's number in its cluster.
__device__ __forceinline__ int block_rank() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return static_cast<int>(rank);
}

// All threads of all blocks of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

// --- Groups with roles of their own.

// Barrier `id` (1 to 15) for `threads` threads, some of which only arrive and some of which wait.
__device__ __forceinline__ void arrive_named(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void wait_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Four 8 x 8 tiles of 16-bit elements to shared memory, laid out in lanes as ptx_wrappers.cuh's load_matrices has them:
// lane l gives the address of row l % 8 of tile l / 8.
__device__ __forceinline__ void store_matrices(void* row_in_shared, uint32_t word0, uint32_t word1,
                                               uint32_t word2, uint32_t word3) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                   shared_address(row_in_shared)),
               "r"(word0), "r"(word1), "r"(word2), "r"(word3)
               : "memory");
#endif
}

}  // namespace deltatrain::backend::cuda::hopper
