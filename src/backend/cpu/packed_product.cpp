// Both operands are cut along k and copied block by block: B into panels of kLanes columns, A into
// panels of kPanelRows rows, each laid out k by k. The innermost loop then keeps kPanelRows x kLanes
// sums in registers and reads both panels from first to last.
#include <algorithm>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "backend/cpu/tile_product.h"
#include "backend/cpu/transposition.h"

namespace deltatrain::backend::cpu {

namespace {

// As many rows of sums as the registers hold beside a row of B and an element of A.
constexpr int64_t kPanelRows = kRegisters == 1 ? 12 : kRegisters == 2 ? 6 : 3;

constexpr int64_t kBlockRows = 96;      // of A, 96 KiB: stays in the second level of cache
constexpr int64_t kBlockColumns = 256;  // of B, 256 KiB; one panel of it in the first level
constexpr int64_t kBlockDepth = 256;
// Rounding errors grow with the number of additions behind each other: few products to a sum, and few sums.
constexpr int64_t kPartDepth = 32;

static_assert(kBlockRows % kPanelRows == 0 && kBlockColumns % kLanes == 0);

// Rows of a block, contiguous along k, become panels[k * kWidth + i]: a square of
// registers at a time. May write kRegisterLanes - 1 numbers past the panel, where the next one comes.
template <int64_t kWidth>
void pack_rows(const float* corner, int64_t step, int64_t num_rows, int64_t depth, float* panel) {
  static_assert(kWidth % kRegisterLanes == 0 || kWidth < kRegisterLanes);
  const int64_t whole = depth - depth % kRegisterLanes;
  for (int64_t k = 0; k < whole; k += kRegisterLanes) {
    for (int64_t first = 0; first < kWidth; first += kRegisterLanes) {
      Register square[kRegisterLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kRegisterLanes; ++i) {
        square[i] =
            first + i < num_rows ? load_register(corner + (first + i) * step + k) : Register{};
      }
      transpose_registers(square);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kRegisterLanes; ++i)
        store_register(panel + (k + i) * kWidth + first, square[i]);
    }
  }
  for (int64_t k = whole; k < depth; ++k) {
    for (int64_t i = 0; i < kWidth; ++i)
      panel[k * kWidth + i] = i < num_rows ? corner[i * step + k] : 0.0F;
  }
}

// Copies a block of `width` by `depth` elements, (i, k) at i * step + k * k_step of `from`, one of which is
// 1, into panels of kWidth; what a last panel lacks is zero.
template <int64_t kWidth>
void pack(const float* from, int64_t step, int64_t k_step, int64_t width, int64_t depth,
          float* panels) {
  for (int64_t begin = 0; begin < width; begin += kWidth, panels += kWidth * depth) {
    const float* corner = from + begin * step;
    const int64_t here = std::min(kWidth, width - begin);
    if (k_step == 1) {
      pack_rows<kWidth>(corner, step, here, depth, panels);
    } else if (here == kWidth) {
      for (int64_t k = 0; k < depth; ++k)
        std::memcpy(panels + k * kWidth, corner + k * k_step, sizeof(float) * kWidth);
    } else {
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t i = 0; i < kWidth; ++i)
          panels[k * kWidth + i] = i < here ? corner[i + k * k_step] : 0.0F;
      }
    }
  }
}

// sums[r, :] = sum over k of a[k, r] b[k, :], as a sum of sums over kPartDepth each.
inline void panel_product(const float* a, const float* b, int64_t depth, float* sums) {
  std::fill_n(sums, kPanelRows * kLanes, 0.0F);
  for (int64_t begin = 0; begin < depth; begin += kPartDepth) {
    const int64_t end = std::min(depth, begin + kPartDepth);
    Lanes row[kPanelRows] = {};
    for (int64_t k = begin; k < end; ++k) {
      const Lanes b_row = load(b + k * kLanes);
#pragma GCC unroll 12
      for (int64_t r = 0; r < kPanelRows; ++r) row[r] += a[k * kPanelRows + r] * b_row;
    }
#pragma GCC unroll 12
    for (int64_t r = 0; r < kPanelRows; ++r) {
      float* const to = sums + r * kLanes;
      store(to, load(to) + row[r]);
    }
  }
}

}  // namespace

void packed_product(const TileProduct& args) {
  alignas(64) float a_panels[kBlockRows * kBlockDepth + kRegisterLanes];
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
