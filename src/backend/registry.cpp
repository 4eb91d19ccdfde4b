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
  for (const DeviceKind kind :
       {DeviceKind::kReference, DeviceKind::kCpu, DeviceKind::kCuda, DeviceKind::kPlan}) {
    if (name == device_kind_name(kind)) return kind;
  }
  throw ConfigError(error_text("", "device", "cpu, cuda or reference", "\"" + name + "\""));
}

namespace {

[[noreturn]] [[maybe_unused]] void throw_not_built(DeviceKind kind) {
  throw DeviceError(error_text(std::string("device ") + device_kind_name(kind), "",
                               "a program built with this backend (for cuda: DELTATRAIN_CUDA=ON)",
                               "one without it"));
}

BackendTables planned_tables(DeviceKind planned) {
  switch (planned) {
    case DeviceKind::kReference:
      return reference_tables();
    case DeviceKind::kCpu:
#ifdef DELTATRAIN_WITH_CPU
      return cpu_tables();
#else
      throw_not_built(planned);
#endif
    case DeviceKind::kCuda:
#ifdef DELTATRAIN_WITH_CUDA
      return cuda_tables();
#else
      throw_not_built(planned);
#endif
    case DeviceKind::kPlan:
      break;
  }
  throw InternalError("make_backend: a plan of a plan");
}

}  // namespace

std::unique_ptr<Backend> make_backend(DeviceKind kind, const BackendOptions& options) {
  switch (kind) {
    case DeviceKind::kReference:
      return make_reference_backend();
    case DeviceKind::kPlan:
      return make_plan_backend(planned_tables(options.planned));
    case DeviceKind::kCpu:
#ifdef DELTATRAIN_WITH_CPU
      return make_cpu_backend(options);
#else
      throw_not_built(kind);
#endif
    case DeviceKind::kCuda:
#ifdef DELTATRAIN_WITH_CUDA
      return make_cuda_backend(options);
#else
      throw_not_built(kind);
#endif
  }
  throw InternalError("make_backend: unknown kind");
}

int num_devices([[maybe_unused]] DeviceKind kind) {
#ifdef DELTATRAIN_WITH_CUDA
  if (kind == DeviceKind::kCuda) return cuda_device_count();
#endif
  return 1;
}

std::vector<DeviceKind> available_backends() {
  std::vector<DeviceKind> kinds = {DeviceKind::kReference};
#ifdef DELTATRAIN_WITH_CPU
  kinds.push_back(DeviceKind::kCpu);
#endif
#ifdef DELTATRAIN_WITH_CUDA
  if (cuda_device_count() > 0) kinds.push_back(DeviceKind::kCuda);
#endif
  return kinds;
}

}  // namespace deltatrain::backend
