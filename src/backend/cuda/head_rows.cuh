// Rows of a head's width (32 to 256 elements) dealt to tiles of neighbouring lanes: the norms over
// heads.
#pragma once

#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

// A tile of kLanes lanes owns one head of kLanes * kHeadVector bf16 elements, one 16-byte vector
// each.
inline constexpr int kHeadVector = 8;
inline constexpr int kHeadBlock = 256;

template <int kLanes>
struct HeadTile {
  static constexpr int kTilesPerBlock = kHeadBlock / kLanes;
  int tile;    // within the block
  int column;  // of the lane's first element

  __device__ __forceinline__ HeadTile()
      : tile(static_cast<int>(threadIdx.x) / kLanes),
        column(static_cast<int>(threadIdx.x) % kLanes * kHeadVector) {}
};

template <int kLanes>
struct LaneCount {
  static constexpr int value = kLanes;
};

// Calls function(LaneCount<width / 8>{}) and returns true where tiles exist for bf16 heads of this
// width.
template <class Function>
bool with_head_lanes(DType dtype, int64_t width, Function function) {
  if (dtype != DType::kBF16) return false;
  switch (width) {
    case 4 * kHeadVector:
      function(LaneCount<4>{});
      return true;
    case 8 * kHeadVector:
      function(LaneCount<8>{});
      return true;
    case 16 * kHeadVector:
      function(LaneCount<16>{});
      return true;
    default:
      return false;
  }
}

}  // namespace deltatrain::backend::cuda
