// What each backend's folder provides to the registry.
#pragma once

#include <memory>

#include "backend/registry.h"

namespace deltatrain::backend {

std::unique_ptr<Backend> make_reference_backend();
std::unique_ptr<Backend> make_plan_backend();
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);
int cuda_device_count();  // 0 also when there is no driver

}  // namespace deltatrain::backend
