#include <dnnl.h>

#include "backend/cpu/tile_product.h"

namespace deltatrain::backend::cpu {

namespace {

// Shorter sums are sums of parts (packed_product), which round less than oneDNN's chain: in a small model last bits grow to
// the bound of its gradients.
constexpr int64_t kLongSum = 512;

}  // namespace

// Without AVX-512 the bits of a row of oneDNN's sgemm depend on how many rows there are, which scores and answers of
// one batch must not.
void tile_product(const TileProduct& args) {
  static const bool rows_are_independent =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  if (!rows_are_independent || args.K < kLongSum) return packed_product(args);
  dnnl_sgemm(args.a.transposed ? 'T' : 'N', args.b.transposed ? 'T' : 'N', args.M, args.N, args.K,
             1.0F, args.a.data, args.a.stride, args.b.data, args.b.stride, args.keep, args.c,
             args.c_stride);
}

}  // namespace deltatrain::backend::cpu
