// What can be said of the CUDA backend on any machine: planning works without a device, and a machine without one
// gets told so; and on one with a device, what it does besides ops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <vector>

#include "backend/cuda/gated_delta_rule.h"
#include "backend/factories.h"
#include "backend/registry.h"
#include "base/error.h"
#include "device/side_copy.h"
#include "ops/embedding.h"
#include "ops/rms_norm.h"
#include "ops/short_conv.h"

namespace deltatrain::backend {

namespace {

class CudaPlanTest : public testing::Test {
 protected:
  CudaPlanTest() : backend_(make_backend(DeviceKind::kPlan, options())) {}

  static BackendOptions options() {
    BackendOptions options;
    options.planned = DeviceKind::kCuda;
    return options;
  }
  Context context() { return backend_->context(arena_, DType::kBF16); }
  Tensor tensor(DType dtype, const Shape& shape) { return arena_.save(dtype, shape); }
  size_t scratch_bytes() const { return arena_.peak_bytes() - arena_.peak_saved_bytes(); }

  Arena arena_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaPlanTest, KnowsTheScratchOfANormsBackwardWithoutADevice) {
  const int64_t R = 65536;
  const int64_t D = 1024;
  const DType bf16 = DType::kBF16;
  const Tensor x = tensor(bf16, {R, D});
  const Tensor weight = tensor(DType::kF32, {D});
  const Tensor inv_rms = tensor(DType::kF32, {R});
  ops::rms_norm_backward(context(), {tensor(bf16, {R, D}), x, weight, inv_rms, Tensor(), tensor(bf16, {R, D}),
                                     tensor(DType::kF32, {D})});
  EXPECT_GE(scratch_bytes(), static_cast<size_t>(132 * D * 4));
  EXPECT_LE(scratch_bytes(), size_t{16} << 20);
}

TEST_F(CudaPlanTest, TakesScratchForSortingIds) {
  const int64_t R = 65536;
  const int64_t D = 1024;
  ops::embedding_backward(context(), {tensor(DType::kI32, {R}), tensor(DType::kBF16, {R, D}),
                                      tensor(DType::kF32, {128256, D})});
  EXPECT_GE(scratch_bytes(), static_cast<size_t>(R * 16));
  EXPECT_LE(scratch_bytes(), size_t{64} << 20);
}

// Devices of capability 8.6 and 8.9 give a block 99 KiB of shared memory, 8.0 163 KiB, later ones 227 KiB: which heads
// that leaves is in docs/portability.md.
TEST(CudaDeltaHeadsTest, AreThoseThatTheSharedMemoryOfADeviceAllows) {
  using cuda::delta_head_sizes;
  using cuda::DeltaDirection;
  using cuda::DeltaGates;
  const auto forward = DeltaDirection::kForward, backward = DeltaDirection::kBackward;
  const auto gdn = DeltaGates::kPerHead, kda = DeltaGates::kPerChannel;
  const int64_t small = 99 << 10, middle = 163 << 10, large = 227 << 10;
  const DType bf16 = DType::kBF16, f32 = DType::kF32;
  EXPECT_EQ(delta_head_sizes(backward, gdn, bf16, small), "16x16, 16x32, 64x64");
  EXPECT_EQ(delta_head_sizes(forward, gdn, bf16, small), "16x16, 16x32, 64x64, 64x128, 128x128");
  EXPECT_EQ(delta_head_sizes(backward, kda, bf16, small), "16x16, 16x32, 32x64");
  EXPECT_EQ(delta_head_sizes(forward, kda, bf16, small), "16x16, 16x32, 32x64, 64x64");
  EXPECT_EQ(delta_head_sizes(backward, gdn, bf16, middle), "16x16, 16x32, 64x64, 64x128");
  EXPECT_EQ(delta_head_sizes(backward, kda, bf16, middle), "16x16, 16x32, 32x64, 64x64");
  EXPECT_EQ(delta_head_sizes(backward, kda, f32, small), "16x16, 16x32, 32x64, 64x64");
  EXPECT_EQ(delta_head_sizes(backward, gdn, bf16, large), "16x16, 16x32, 64x64, 64x128, 128x128");
  EXPECT_EQ(delta_head_sizes(backward, kda, bf16, large), "16x16, 16x32, 32x64, 64x64, 128x128");
}

// What a copier finds is what the ops before it left, and what ops beside it do elsewhere changes nothing.
TEST(CudaSideCopyTest, CopiesWhatTheOpsBeforeLeftWhileOthersRun) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  const auto backend = make_backend(DeviceKind::kCuda);
  Device& device = backend->device();
  // Less than a block, one block and a byte, and many of them for each lane.
  for (const size_t bytes : {size_t{1}, (size_t{4} << 20) + 1, (size_t{200} << 20) + 12345}) {
    std::vector<char> want(bytes), got(bytes + 1, 'p');
    uint64_t state = bytes;
    for (char& c : want) c = static_cast<char>((state = state * 6364136223846793005U + 1442695040888963407U) >> 56);
    const Buffer source(device.memory(), bytes), kept(device.memory(), bytes), other(device.memory(), bytes);
    device.copy_to_device(source.data(), want.data(), bytes);
    device.fill_zero(kept.data(), bytes);
    for (int i = 0; i < 200; ++i) device.copy_on_device(other.data(), source.data(), bytes);
    device.copy_on_device(kept.data(), source.data(), bytes);
    {
      const auto copier = make_side_copier(device);
      auto copied = std::async(std::launch::async, [&] { copier->copy_to_host(got.data(), kept.data(), bytes); });
      do {
        device.fill_zero(source.data(), bytes);
        device.copy_on_device(other.data(), source.data(), bytes);
        device.synchronize();
      } while (copied.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
      copied.get();
    }
    EXPECT_EQ(std::memcmp(got.data(), want.data(), bytes), 0) << bytes;
    EXPECT_EQ(got.back(), 'p') << bytes;
  }
}

TEST(CudaDeviceTest, SaysWhatAMachineWithoutADeviceLacks) {
  if (cuda_device_count() > 0) {
    BackendOptions options;
    options.device_index = cuda_device_count();
    EXPECT_THAT([&] { make_backend(DeviceKind::kCuda, options); },
                testing::ThrowsMessage<DeviceError>(testing::HasSubstr("expected a device that exists")));
    return;
  }
  EXPECT_THAT([] { make_backend(DeviceKind::kCuda); }, testing::ThrowsMessage<DeviceError>(testing::HasSubstr("device cuda:0: ")));
}

}  // namespace

}  // namespace deltatrain::backend
