// Every op of every backend that this machine has, against the reference in f64.
#include "verify/op_cases.h"

#include <gtest/gtest.h>

#include "backend/registry.h"

namespace deltatrain::verify {

namespace {

struct Tested {
  DeviceKind kind;
  DType dtype;
};

std::vector<std::pair<std::string, Tested>> tested_backends() {
  std::vector<std::pair<std::string, Tested>> list;
  for (const DeviceKind kind : backend::available_backends()) {
    list.push_back({std::string(backend::device_kind_name(kind)) + "_f32", {kind, DType::kF32}});
    if (kind == DeviceKind::kCuda) list.push_back({"cuda_bf16", {kind, DType::kBF16}});
  }
  return list;
}

class OpCasesTest
    : public testing::TestWithParam<std::tuple<std::pair<std::string, Tested>, std::string>> {};

TEST_P(OpCasesTest, AgreesWithReference) {
  const auto& [backend_name, op] = GetParam();
  const auto tested = backend::make_backend(backend_name.second.kind);
  const auto reference = backend::make_backend(DeviceKind::kReference);
  Arena tested_arena(tested->device().memory(), kOpCaseArenaBytes);
  Arena reference_arena(host_memory(), kOpCaseArenaBytes);
  const auto results =
      run_op_cases(tested->context(tested_arena, backend_name.second.dtype),
                   reference->context(reference_arena, DType::kF64), {op, "", CaseSet::kSmall});
  EXPECT_FALSE(results.empty());
  for (const OpCaseResult& result : results) EXPECT_TRUE(result.passed) << describe(result);
}

INSTANTIATE_TEST_SUITE_P(Ops, OpCasesTest,
                         testing::Combine(testing::ValuesIn(tested_backends()),
                                          testing::ValuesIn(op_case_names())),
                         [](const auto& test) {
                           return std::get<0>(test.param).first + "_" + std::get<1>(test.param);
                         });

}  // namespace

}  // namespace deltatrain::verify
