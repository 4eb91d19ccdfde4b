#include <dnnl.h>

#include "backend/cpu/tile_product.h"

namespace deltatrain::backend::cpu {

void tile_product(const TileProduct& args) {
  dnnl_sgemm(args.a.transposed ? 'T' : 'N', args.b.transposed ? 'T' : 'N', args.M, args.N, args.K,
             1.0F, args.a.data, args.a.stride, args.b.data, args.b.stride, args.keep, args.c,
             args.c_stride);
}

}  // namespace deltatrain::backend::cpu
