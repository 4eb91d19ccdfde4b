#include "backend/cuda/hopper/tensor_map.h"

#include <cuda_runtime_api.h>

#include <array>
#include <string>

#include "backend/cuda/cuda_check.h"
#include "base/check.h"

namespace deltatrain::backend::cuda {

namespace {

// The driver's own function, through the runtime: nothing is linked with the driver's library.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  constexpr unsigned kSinceVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(
      cudaGetDriverEntryPointByVersion(kName, &function, kSinceVersion, cudaEnableDefault, &result),
      "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess)
    throw DeviceError(error_text("device cuda", "driver", kName, "a driver without it"));
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap describe_boxes(const Tensor& matrix, int box_rows) {
  static const auto encode = encode_function();  // immutable once found
  DELTATRAIN_CHECK(matrix.dtype() == DType::kBF16, std::string(dtype_name(matrix.dtype())));
  constexpr cuuint32_t kBoxColumns = 64;
  const std::array<cuuint64_t, 2> sizes = {static_cast<cuuint64_t>(matrix.size(1)),
                                           static_cast<cuuint64_t>(matrix.size(0))};
  const std::array<cuuint64_t, 1> row_bytes = {sizes[0] * sizeof(uint16_t)};
  const std::array<cuuint32_t, 2> box = {kBoxColumns, narrow<cuuint32_t>(box_rows)};
  const std::array<cuuint32_t, 2> steps = {1, 1};
  CUtensorMap map;
  const CUresult status = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.raw(), sizes.data(), row_bytes.data(),
      box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw DeviceError("cuda: cuTensorMapEncodeTiled of " + std::to_string(sizes[1]) + " x " +
                      std::to_string(sizes[0]) + ": error " + std::to_string(status));
  }
  return map;
}

}  // namespace deltatrain::backend::cuda
