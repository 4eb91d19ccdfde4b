#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/test_files.h"

namespace deltatrain::test {
namespace {

using ::testing::HasSubstr;

// Before any device is asked for, so that a machine without one says the same.
TEST(TrainCommandTest, RefusesAnF32ResidualStreamInBf16OnCuda) {
  const ProgramResult result = run_program(
      "train --recipe recipes/gdn/gdn_300m.yaml --set data.train=/nonexistent "
      "--set train.fp32_residual_connection=true --device cuda --out /nonexistent/run");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("train.fp32_residual_connection: expected false, as the residual stream is bf16 "
                                    "on cuda in precision bf16, got true"));
}

}  // namespace
}  // namespace deltatrain::test
