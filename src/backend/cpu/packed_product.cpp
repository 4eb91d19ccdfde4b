// Both operands are cut along k and copied block by block: B into panels of kLanes columns, A into
// panels of kPanelRows rows, each laid out k by k. The innermost loop then keeps kPanelRows x kLanes
// sums in registers and reads both panels from first to last.
#include <algorithm>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "backend/cpu/tile_product.h"

namespace deltatrain::backend::cpu {

namespace {

// One register, and as many rows of sums as the registers hold beside a row of B and an element of A.
// GCC keeps vectors wider than a register in memory.
#ifdef __AVX512F__
constexpr int64_t kPartLanes = 16;
constexpr int64_t kPanelRows = 12;
#else
constexpr int64_t kPartLanes = 8;
constexpr int64_t kPanelRows = 6;
#endif
constexpr int64_t kParts = kLanes / kPartLanes;
typedef float Part __attribute__((vector_size(kPartLanes * 4)));
typedef float UnalignedPart __attribute__((vector_size(kPartLanes * 4), aligned(4), may_alias));

constexpr int64_t kBlockRows = 96;      // of A, 96 KiB: stays in the second level of cache
constexpr int64_t kBlockColumns = 256;  // of B, 256 KiB; one panel of it in the first level
constexpr int64_t kBlockDepth = 256;

static_assert(kBlockRows % kPanelRows == 0 && kBlockColumns % kLanes == 0);

// Copies a block of `width` by `depth` elements, first(i, k) at i * step + k * k_step of `from`, into
// panels of kWidth; what a last panel lacks is zero.
template <int64_t kWidth>
void pack(const float* from, int64_t step, int64_t k_step, int64_t width, int64_t depth,
          float* panels) {
  for (int64_t begin = 0; begin < width; begin += kWidth, panels += kWidth * depth) {
    const float* corner = from + begin * step;
    const int64_t here = std::min(kWidth, width - begin);
    if (here < kWidth) std::memset(panels, 0, static_cast<size_t>(kWidth * depth) * sizeof(float));
    if (step == 1 && here == kWidth) {
      for (int64_t k = 0; k < depth; ++k)
        std::memcpy(panels + k * kWidth, corner + k * k_step, sizeof(float) * kWidth);
    } else {
      for (int64_t i = 0; i < here; ++i) {
        for (int64_t k = 0; k < depth; ++k) panels[k * kWidth + i] = corner[i * step + k * k_step];
      }
    }
  }
}

// sums[r, :] = sum over k of a[k, r] b[k, :]
inline void panel_product(const float* a, const float* b, int64_t depth, float* sums) {
  Part row[kPanelRows][kParts] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Part b_parts[kParts];
    for (int64_t p = 0; p < kParts; ++p)
      b_parts[p] = *reinterpret_cast<const UnalignedPart*>(b + k * kLanes + p * kPartLanes);
#pragma GCC unroll 12
    for (int64_t r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 2
      for (int64_t p = 0; p < kParts; ++p) row[r][p] += a[k * kPanelRows + r] * b_parts[p];
    }
  }
  std::memcpy(sums, row, sizeof row);
}

}  // namespace

void packed_product(const TileProduct& args) {
  alignas(64) float a_panels[kBlockRows * kBlockDepth];
  alignas(64) float b_panels[kBlockColumns * kBlockDepth];
  const int64_t a_step = args.a.transposed ? 1 : args.a.stride;
  const int64_t a_k_step = args.a.transposed ? args.a.stride : 1;
  const int64_t b_step = args.b.transposed ? args.b.stride : 1;
  const int64_t b_k_step = args.b.transposed ? 1 : args.b.stride;
  for (int64_t first_column = 0; first_column < args.N; first_column += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, args.N - first_column);
    // At least once, so that an empty sum is written too.
    for (int64_t first_k = 0; first_k == 0 || first_k < args.K; first_k += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, args.K - first_k);
      const float keep = first_k == 0 ? args.keep : 1.0F;
      pack<kLanes>(args.b.data + first_column * b_step + first_k * b_k_step, b_step, b_k_step,
                   columns, depth, b_panels);
      for (int64_t first_row = 0; first_row < args.M; first_row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, args.M - first_row);
        pack<kPanelRows>(args.a.data + first_row * a_step + first_k * a_k_step, a_step, a_k_step,
                         rows, depth, a_panels);
        for (int64_t j = 0; j < columns; j += kLanes) {
          for (int64_t i = 0; i < rows; i += kPanelRows) {
            alignas(64) float sums[kPanelRows * kLanes];
            panel_product(a_panels + i * depth, b_panels + j * depth, depth, sums);
            const int64_t here_rows = std::min(kPanelRows, rows - i);
            const int64_t here_columns = std::min(kLanes, columns - j);
            float* c = args.c + (first_row + i) * args.c_stride + first_column + j;
            for (int64_t r = 0; r < here_rows; ++r, c += args.c_stride) {
              const float* from = sums + r * kLanes;
              if (here_columns == kLanes) {
                store(c, keep == 0 ? load(from) : keep * load(c) + load(from));
              } else {
                for (int64_t n = 0; n < here_columns; ++n)
                  c[n] = keep == 0 ? from[n] : keep * c[n] + from[n];
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace deltatrain::backend::cpu
