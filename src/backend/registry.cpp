#include "backend/registry.h"

#include "backend/factories.h"
#include "base/error.h"

namespace deltatrain::backend {

const char* device_kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kReference:
      return "reference";
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kPlan:
      return "plan";
  }
  return "?";
}

DeviceKind parse_device_kind(const std::string& name) {
  for (const DeviceKind kind : {DeviceKind::kReference, DeviceKind::kCpu, DeviceKind::kCuda, DeviceKind::kPlan}) {
    if (name == device_kind_name(kind)) return kind;
  }
  throw ConfigError(error_text("", "device", "cpu, cuda or reference", "\"" + name + "\""));
}

std::unique_ptr<Backend> make_backend(DeviceKind kind, const BackendOptions& options) {
  switch (kind) {
    case DeviceKind::kReference:
      return make_reference_backend();
    case DeviceKind::kPlan:
      return make_plan_backend();
    case DeviceKind::kCpu:
      return make_cpu_backend(options);
    case DeviceKind::kCuda:
#ifdef DELTATRAIN_WITH_CUDA
      return make_cuda_backend(options);
#else
      throw DeviceError("device cuda: this program was built without CUDA (configure with DELTATRAIN_CUDA=ON)");
#endif
  }
  throw InternalError("make_backend: unknown kind");
}

std::vector<DeviceKind> available_backends() {
  std::vector<DeviceKind> kinds = {DeviceKind::kReference, DeviceKind::kCpu};
#ifdef DELTATRAIN_WITH_CUDA
  if (cuda_device_count() > 0) kinds.push_back(DeviceKind::kCuda);
#endif
  return kinds;
}

}  // namespace deltatrain::backend
