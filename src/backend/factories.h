// What each backend's folder provides to the registry.
#pragma once

#include <memory>

#include "backend/registry.h"

namespace deltatrain::backend {

// The functions of a backend, apart from any device.
//
// Planning: a step is planned by running it with made-up addresses (DeviceKind::kPlan) on an arena
// without memory, to learn how much the step takes. Functions that take no scratch have nothing to
// say then and are not called. Those that do take scratch from context.arena stand in `planning`
// too, and keep one rule:
//
//   they take all their scratch first, and where context.arena->is_planning() return right after,
//   having looked at nothing but shapes, dtypes, Sequences::offsets and the arena. context.device
//   is not the backend's own device then.
//
// gated_delta_rule.saved_bytes stands in both.
struct BackendTables {
  ops::OpTable table;     // every op of the backend
  ops::OpTable planning;  // only the functions that take scratch or tell sizes, all others null
};

BackendTables reference_tables();
BackendTables cpu_tables();
BackendTables cuda_tables();  // works without a device

std::unique_ptr<Backend> make_reference_backend();
std::unique_ptr<Backend> make_plan_backend(const BackendTables& planned);
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);
int cuda_device_count();  // 0 also when there is no driver

}  // namespace deltatrain::backend
