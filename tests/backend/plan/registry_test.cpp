#include "backend/registry.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace deltatrain::backend {

namespace {

TEST(RegistryTest, NamesAreReadBack) {
  for (const auto kind :
       {DeviceKind::kReference, DeviceKind::kCpu, DeviceKind::kCuda, DeviceKind::kPlan}) {
    EXPECT_EQ(parse_device_kind(device_kind_name(kind)), kind);
  }
  try {
    parse_device_kind("gpu");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "device: expected cpu, cuda or reference, got \"gpu\"");
  }
}

TEST(RegistryTest, MakesWhatItSaysIsAvailable) {
  const auto kinds = available_backends();
  ASSERT_FALSE(kinds.empty());
  EXPECT_EQ(kinds.front(), DeviceKind::kReference);
  for (const DeviceKind kind : kinds) {
    const auto backend = make_backend(kind);
    EXPECT_EQ(backend->device().kind(), kind);
    EXPECT_STREQ(backend->table().backend, device_kind_name(kind));
    EXPECT_GT(backend->device().free_memory_bytes(), 0);
  }
}

TEST(RegistryTest, DevicesMoveBytes) {
  for (const DeviceKind kind : available_backends()) {
    const auto backend = make_backend(kind);
    Device& device = backend->device();
    const std::vector<int32_t> sent = {1, -2, 3, 4};
    std::vector<int32_t> received(4);
    const Buffer a(device.memory(), 16), b(device.memory(), 16);
    device.copy_to_device(a.data(), sent.data(), 16);
    device.copy_on_device(b.data(), a.data(), 16);
    device.fill_zero(a.data(), 8);
    device.copy_to_host(received.data(), b.data(), 16);
    EXPECT_EQ(received, sent);
    device.copy_to_host(received.data(), a.data(), 16);
    EXPECT_EQ(received, (std::vector<int32_t>{0, 0, 3, 4}));
    device.synchronize();
  }
}

}  // namespace

}  // namespace deltatrain::backend
