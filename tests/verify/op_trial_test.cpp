// The comparison itself: backends with one fault each have to be found out.
#include "verify/op_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "backend/registry.h"
#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/gated_delta_rule.h"

namespace deltatrain::verify {

namespace {

using testing::HasSubstr;

void add_rightly(const Context&, const ops::Add& a) {
  const View<const float> x(a.a_RD), y(a.b_RD);
  const View<float> out(a.y_RD);
  for (int64_t r = 0; r < out.size(0); ++r) {
    for (int64_t d = 0; d < out.size(1); ++d) out(r, d) = x(r, d) + y(r, d);
  }
}

void add_in_bf16(const Context&, const ops::Add& a) {
  const View<const BFloat16> x(a.a_RD), y(a.b_RD);
  const View<BFloat16> out(a.y_RD);
  for (int64_t r = 0; r < out.size(0); ++r) {
    for (int64_t d = 0; d < out.size(1); ++d) {
      out(r, d) = BFloat16(static_cast<float>(x(r, d)) + static_cast<float>(y(r, d)));
    }
  }
}

class OpTrialTest : public testing::Test {
 protected:
  // What the comparison says about `add`; "" where it is content.
  std::string verdict(void (*add)(const Context&, const ops::Add&),
                      Placement placement = Placement::kStridedRows, DType dtype = DType::kF32) {
    ops::OpTable table = reference_->table();
    table.backend = "faulty";
    table.elementwise.add = add;
    const Context tested{&reference_->device(), &table, &arena_, dtype};
    std::vector<OpCaseResult> results;
    OpTrial trial(tested, reference_->context(arena_, DType::kF64), "add", "case", results);
    const Argument& a = trial.activation("a_RD", {50, 40}, normal(), placement);
    const Argument& b = trial.activation("b_RD", {50, 40});
    const Argument& y =
        trial.activation_output("y_RD", {50, 40}, Quantity::kElementwise, placement);
    const auto call = [&](const Context& context, const Pick& pick) {
      ops::add(context, {pick(a), pick(b), pick(y)});
    };
    trial.run(call);
    trial.expect_prefix_unchanged(call, 50, {1, 20});
    std::string text;
    for (const OpCaseResult& result : results) {
      if (!result.passed) text += describe(result) + "\n";
    }
    return text;
  }

  std::unique_ptr<backend::Backend> reference_ = backend::make_backend(DeviceKind::kReference);
  Arena arena_{host_memory(), 1 << 20};
};

TEST_F(OpTrialTest, AcceptsARightOp) {
  for (const auto placement :
       {Placement::kContiguous, Placement::kStridedRows, Placement::kOddRows}) {
    EXPECT_EQ(verdict(add_rightly, placement), "");
  }
}

TEST_F(OpTrialTest, GivesTheReferenceTheRoundedInputs) {
  EXPECT_EQ(verdict(add_in_bf16, Placement::kOddRows, DType::kBF16), "");
}

TEST_F(OpTrialTest, FindsAnOutputThatIsNotWritten) {
  EXPECT_THAT(verdict([](const Context&, const ops::Add&) {}), HasSubstr("y_RD: error inf"));
}

TEST_F(OpTrialTest, FindsOneElementThatIsNotWritten) {
  const std::string text = verdict([](const Context& context, const ops::Add& a) {
    View<float> y(a.y_RD);
    const float kept = y(49, 39);
    add_rightly(context, a);
    y(49, 39) = kept;
  });
  EXPECT_THAT(text, HasSubstr("furthest off at element 1999"));
}

TEST_F(OpTrialTest, FindsOneElementThatIsSlightlyOff) {
  const std::string text = verdict([](const Context& context, const ops::Add& a) {
    add_rightly(context, a);
    View<float>(a.y_RD)(3, 5) *= 1.0001F;
  });
  EXPECT_THAT(text, HasSubstr("furthest off at element 125"));
}

TEST_F(OpTrialTest, FindsAWriteIntoTheGap) {
  const std::string text = verdict([](const Context& context, const ops::Add& a) {
    add_rightly(context, a);
    View<float>(a.y_RD).data()[40] = 0;
  });
  EXPECT_THAT(
      text,
      HasSubstr(
          "y_RD: error 0, bound 0; furthest off at element 0: expected 0, got 0 (wrote outside"));
}

TEST_F(OpTrialTest, FindsAWriteBehindTheTensor) {
  const std::string text = verdict(
      [](const Context& context, const ops::Add& a) {
        add_rightly(context, a);
        View<float>(a.y_RD).data()[50 * 40] = 0;
      },
      Placement::kContiguous);
  EXPECT_THAT(text, HasSubstr("wrote outside of the tensor (byte 8000)"));
}

TEST_F(OpTrialTest, FindsAChangedInput) {
  const std::string text = verdict([](const Context& context, const ops::Add& a) {
    add_rightly(context, a);
    View<float>(a.b_RD)(0, 0) = 7;
  });
  EXPECT_THAT(text, HasSubstr("b_RD"));
  EXPECT_THAT(text, HasSubstr("changed an input"));
}

TEST_F(OpTrialTest, FindsOtherBitsTheSecondTime) {
  const std::string text = verdict([](const Context& context, const ops::Add& a) {
    static int calls = 0;
    add_rightly(context, a);
    if (++calls % 2 == 0)
      View<float>(a.y_RD)(0, 0) = std::nextafter(View<float>(a.y_RD)(0, 0), 100.0F);
  });
  EXPECT_THAT(text, HasSubstr("other bits when the same call ran again"));
}

TEST_F(OpTrialTest, FindsRowsThatDependOnLaterOnes) {
  const std::string text = verdict([](const Context& context, const ops::Add& a) {
    add_rightly(context, a);
    const View<const float> x(a.a_RD);
    View<float>(a.y_RD)(0, 0) += 1e-2F * x(20, 0);
  });
  EXPECT_THAT(text, HasSubstr("depends on rows from 20 on"));
}

// Under tools that watch every access large tensors are left out, where the case does not ask for them.
TEST_F(OpTrialTest, LeavesOutLargeTensorsUnlessTheyAreKept) {
  for (const bool keep : {false, true}) {
    const Context tested = reference_->context(arena_, DType::kF64);
    std::vector<OpCaseResult> results;
    OpTrial trial(tested, tested, "add", "case", results, Surroundings::kExact);
    if (keep) trial.keep_when_exact();
    const Argument& a = trial.activation("a_RD", {1, kMaxExactElements + 1});
    const Argument& y =
        trial.activation_output("y_RD", {1, kMaxExactElements + 1}, Quantity::kElementwise);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::add(context, {pick(a), pick(a), pick(y)});
    });
    EXPECT_EQ(results.size(), keep ? 1U : 0U);
  }
}

// So that such tools see which outputs an op leaves unwritten: what the first call left is there before the second.
TEST_F(OpTrialTest, WritesNoOutputsUnderSuchTools) {
  const auto add_sevens = [](const Context&, const ops::Add& a) {
    const View<double> out(a.y_RD);
    for (int64_t r = 0; r < out.size(0); ++r) {
      for (int64_t d = 0; d < out.size(1); ++d) out(r, d) = 7;
    }
  };
  ops::OpTable table = reference_->table();
  table.elementwise.add = add_sevens;
  const Context tested{&reference_->device(), &table, &arena_, DType::kF64};
  for (const auto& [surroundings, is_kept] :
       {std::pair{Surroundings::kExact, true}, std::pair{Surroundings::kGuarded, false}}) {
    std::vector<OpCaseResult> results;
    OpTrial trial(tested, reference_->context(arena_, DType::kF64), "add", "case", results,
                  surroundings);
    const Argument& a = trial.activation("a_RD", {5, 4});
    const Argument& y =
        trial.activation_output("y_RD", {5, 4}, Quantity::kElementwise, Placement::kStridedRows);
    std::vector<double> found;  // in the output's last element, before each call
    const auto call = [&](const Context& context, const Pick& pick) {
      if (context.table == &table) found.push_back(View<const double>(pick(y))(4, 3));
      ops::add(context, {pick(a), pick(a), pick(y)});
    };
    trial.run(call);
    trial.run(call);
    ASSERT_GE(found.size(), 2U);
    EXPECT_EQ(found[1] == 7.0, is_kept);
  }
}

TEST_F(OpTrialTest, ReportsWhatTheBackendRefuses) {
  const std::string text = verdict(nullptr);
  EXPECT_THAT(
      text,
      HasSubstr("not supported: add: expected an implementation in backend faulty, got none"));
}

TEST_F(OpTrialTest, ReportsErrors) {
  const std::string text =
      verdict([](const Context&, const ops::Add&) { throw DeviceError("broken"); });
  EXPECT_THAT(text, HasSubstr("broken"));
}

}  // namespace

}  // namespace deltatrain::verify
