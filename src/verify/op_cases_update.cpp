// Cases of the optimizer's pass and of the element-wise ops.
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>

#include "base/check.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

// StepScalars as an argument of f64 numbers;
// `skipped`, an integer, is the last of them bit for bit.
static_assert(sizeof(ops::StepScalars) == 7 * sizeof(double));

std::vector<double> as_numbers(const ops::StepScalars& scalars) {
  std::vector<double> numbers(7);
  std::memcpy(numbers.data(), &scalars, sizeof scalars);
  return numbers;
}

std::vector<double> as_bytes(const ops::StepScalars& scalars) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&scalars);
  return {bytes, bytes + sizeof scalars};
}

ops::StepScalars* scalars_at(const Tensor& tensor) {
  return static_cast<ops::StepScalars*>(tensor.raw());
}

void sum_of_squares_case(const CaseRun& run, int64_t X, ops::GradMode mode) {
  OpTrial trial = run.trial("sum_of_squares");
  const double deviation = 1 / std::sqrt(static_cast<double>(X));
  const Argument& gradient = trial.statistic("gradient_X", {X}, normal(deviation));
  const Argument& scalars =
      trial.argument("scalars", Role::kInOut, DType::kF64, {7}, Quantity::kUpdate,
                     as_numbers({0.5, 0.25, 1, 0.125, 3, 1, 0}));
  trial.run([&](const Context& context, const Pick& pick) {
    ops::sum_of_squares(context, {pick(gradient), scalars_at(pick(scalars)), mode});
  });
}

void finish_case(const CaseRun& run, double sum_of_squares, double clip_grad,
                 std::optional<double> loss) {
  OpTrial trial = run.trial("finish_gradient_norm");
  ops::StepScalars start;
  start.sum_of_squares = sum_of_squares;
  start.clip_grad = clip_grad;
  start.skipped = 41;
  // Square root and division are correctly rounded everywhere, so all bytes are known, except those
  // of a NaN.
  const Argument& scalars = std::isnan(sum_of_squares)
                                ? trial.argument("scalars", Role::kInOut, DType::kF64, {7},
                                                 Quantity::kExact, as_numbers(start))
                                : trial.argument("scalars", Role::kInOut, DType::kU8,
                                                 {sizeof start}, Quantity::kExact, as_bytes(start));
  const Argument* loss_sum = nullptr;
  if (loss)
    loss_sum = &trial.argument("loss_sum", Role::kIn, DType::kF64, {1}, Quantity::kExact, {*loss});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::FinishGradientNorm args{.scalars = scalars_at(pick(scalars))};
    if (loss_sum != nullptr) args.loss_sum = pick(*loss_sum).data<double>();
    ops::finish_gradient_norm(context, args);
  });
}

struct AdamWOptions {
  double step = 1;
  double clip_factor = 1;
  double weight_decay = 0.1;
  bool compute_copy = false;
  bool finite = true;
  int64_t skipped = 0;  // as finish_gradient_norm leaves it
};

void adamw_case(const CaseRun& run, int64_t X, const AdamWOptions& options) {
  OpTrial trial = run.trial("adamw");
  ops::StepScalars step;
  step.gradient_norm = options.finite ? 1 : std::numeric_limits<double>::infinity();
  step.clip_factor = options.clip_factor;
  step.learning_rate = 3e-3;
  step.step = options.step;
  step.skipped = options.skipped;
  Argument& parameter = trial.statistic("parameter_X", {X});
  trial.changed(parameter, Quantity::kUpdate);
  const Argument& gradient = trial.statistic("gradient_X", {X}, normal(0.1));
  const Argument& m = trial.changed(trial.statistic("m_X", {X}, normal(options.step > 1 ? 0.1 : 0)),
                                    Quantity::kUpdate);
  const Argument& v = trial.changed(
      trial.statistic("v_X", {X}, uniform(0, options.step > 1 ? 0.02 : 0)), Quantity::kUpdate);
  const int64_t blocks = divide_up(X, ops::kDecayBlock);
  std::vector<double> decays(static_cast<size_t>(blocks));
  for (size_t i = 0; i < decays.size(); ++i) decays[i] = i % 3 == 1 ? 0 : 1;
  const Argument& decays_X =
      trial.argument("decays_X", Role::kIn, DType::kU8, {blocks}, Quantity::kExact, decays);
  const Argument& scalars =
      trial.argument("scalars", Role::kIn, DType::kF64, {7}, Quantity::kExact, as_numbers(step));
  const Argument* compute = nullptr;
  if (options.compute_copy) {
    const std::vector<double> start(static_cast<size_t>(X), 7);
    compute =
        &trial.literal("compute_X", Role::kInOut, DType::kBF16, {X}, Quantity::kRounded, start);
  }
  trial.run([&](const Context& context, const Pick& pick) {
    ops::AdamW args;
    args.parameter_X = pick(parameter);
    args.compute_X = pick(compute);
    args.gradient_X = pick(gradient);
    args.m_X = pick(m);
    args.v_X = pick(v);
    args.decays_X = pick(decays_X);
    args.scalars = scalars_at(pick(scalars));
    args.weight_decay = options.weight_decay;
    ops::adamw(context, args);
  });
}

void add_adamw(std::vector<OpCase>& cases) {
  for (const int64_t X : {1, 63, 1000, 100003}) {
    cases.push_back({"adamw", "norm of " + std::to_string(X),
                     X < 10000 ? CaseSet::kSmall : CaseSet::kFull,
                     [X](const CaseRun& run) {
                       sum_of_squares_case(run, X, ops::GradMode::kOverwrite);
                     }});
    cases.push_back({"adamw", "norm of " + std::to_string(X) + ", added",
                     X < 10000 ? CaseSet::kSmall : CaseSet::kFull,
                     [X](const CaseRun& run) {
                       sum_of_squares_case(run, X, ops::GradMode::kAccumulate);
                     }});
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Finish {
    const char* name;
    double sum, clip;
    std::optional<double> loss;
  };
  for (const Finish& finish : std::initializer_list<Finish>{{"clip a large norm", 17, 1, 2.5},
                                                            {"clip a small norm", 0.01, 1, {}},
                                                            {"no clipping", 17, 0, -0.0},
                                                            {"zero gradient", 0, 1, {}},
                                                            {"infinite gradient", infinity, 1, {}},
                                                            {"NaN gradient", nan, 0, 2.5},
                                                            {"infinite loss", 17, 1, infinity},
                                                            {"NaN loss", 17, 1, nan}}) {
    cases.push_back({"adamw", finish.name, CaseSet::kSmall, [finish](const CaseRun& run) {
                       finish_case(run, finish.sum, finish.clip, finish.loss);
                     }});
  }
  const auto add = [&cases](CaseSet set, int64_t X, const char* what, const AdamWOptions& options) {
    cases.push_back({"adamw", "X=" + std::to_string(X) + what, set,
                     [=](const CaseRun& run) { adamw_case(run, X, options); }});
  };
  add(CaseSet::kSmall, 1000, ", first step", {1, 1, 0.1, false, true});
  add(CaseSet::kSmall, 1000, ", later step, clipped", {1000, 0.03, 0.1, false, true});
  add(CaseSet::kSmall, 1000, ", bf16 copy", {10, 1, 0.1, true, true});
  add(CaseSet::kSmall, 1000, ", not finite", {10, 1, 0.1, false, false});
  add(CaseSet::kSmall, 1000, ", left out", {10, 1, 0.1, false, true, 1});
  add(CaseSet::kSmall, 1, ", no decay", {2, 1, 0, false, true});
  add(CaseSet::kFull, 100003, ", bf16 copy", {5000, 0.5, 0.1, true, true});
}

// --- elementwise

void add_case(const CaseRun& run, int64_t R, int64_t D, Placement placement, bool in_place) {
  OpTrial trial = run.trial("add");
  Argument& a = trial.activation("a_RD", {R, D}, normal(), placement);
  const Argument& b = trial.activation("b_RD", {R, D});
  const Argument& y =
      in_place ? trial.changed(a, Quantity::kElementwise)
               : trial.activation_output("y_RD", {R, D}, Quantity::kElementwise, placement);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::add(context, {pick(a), pick(b), pick(y)});
  });
}

void convert_case(const CaseRun& run, int64_t X, DType from, DType to) {
  OpTrial trial = run.trial("convert");
  std::vector<double> values(static_cast<size_t>(X));
  const RandomStream stream(3, "convert");
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::exp(6 * stream.normal(i)) * (i % 2 == 0 ? 1 : -1);
  if (X > 8) {  // ties to even, the ends of the range, and what is no number
    const double special[] = {1.00390625,
                              1.01171875,
                              -0.0,
                              3.0e38,
                              1e-40,
                              std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()};
    std::copy(std::begin(special), std::end(special), values.begin());
  }
  const Argument& x = trial.literal("x", Role::kIn, from, {X}, Quantity::kExact, values);
  const std::vector<double> unused(values.size());
  const Argument& y = trial.literal("y", Role::kOut, to, {X}, Quantity::kExact, unused);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::convert(context, {pick(x), pick(y)});
  });
}

void sum_to_case(const CaseRun& run, int64_t R) {
  OpTrial trial = run.trial("sum_to");
  const Argument& x = trial.statistic("x_R", {R});
  const Argument& result =
      trial.argument("result", Role::kInOut, DType::kF64, {1}, Quantity::kUpdate, {12.5});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::sum_to(context, {pick(x), pick(result).data<double>()});
  });
}

void checksum_case(const CaseRun& run, int64_t X) {
  OpTrial trial = run.trial("checksum");
  std::vector<double> values(static_cast<size_t>(X));
  const RandomStream stream(hash_text(run.name), "x_X");
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::floor((stream.uniform(i) - 0.5) * 4294967295.0);
  const Argument& x = trial.argument("x_X", Role::kIn, DType::kI32, {X}, Quantity::kExact, values);
  const Argument& result = trial.argument("result", Role::kInOut, DType::kU8, {8}, Quantity::kExact,
                                          {1, 2, 3, 4, 5, 6, 7, 255});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::checksum(context, {pick(x), static_cast<uint64_t*>(pick(result).raw())});
  });
}

// The largest of a row appears twice, first among others; one row holds NaN, one infinity.
void row_argmax_case(const CaseRun& run, int64_t R, int64_t N, Placement placement) {
  OpTrial trial = run.trial("row_argmax");
  std::vector<double> values(static_cast<size_t>(R * N));
  const RandomStream stream(hash_text(run.name), "x_RN");
  for (size_t i = 0; i < values.size(); ++i) values[i] = stream.normal(i);
  for (int64_t r = 0; r < R; ++r) {
    double* row = values.data() + r * N;
    if (r % 4 == 0) row[N / 3] = row[N - 1] = 9;
    if (r % 4 == 1) row[N - 1] = std::numeric_limits<double>::quiet_NaN();
    if (r % 4 == 2) row[N / 2] = std::numeric_limits<double>::infinity();
    if (r % 4 == 3) row[N / 2] = -std::numeric_limits<double>::infinity();
  }
  const Argument& x = trial.activation("x_RN", {R, N}, values, placement);
  const std::vector<double> unused(static_cast<size_t>(R));
  const Argument& index =
      trial.argument("index_R", Role::kOut, DType::kI32, {R}, Quantity::kExact, unused);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::row_argmax(context, {pick(x), pick(index)});
  });
}

// Rows 0, 2, 4, ... of x in reverse order, and zeros, to odd rows of y; the others keep what they have.
void copy_rows_case(const CaseRun& run, DType dtype, const Shape& shape, bool counts) {
  OpTrial trial = run.trial("copy_rows");
  const auto elements = static_cast<size_t>(shape.num_elements());
  const RandomStream stream(hash_text(run.name), "rows");
  std::vector<double> x_values(elements), y_values(elements);
  for (size_t i = 0; i < elements; ++i) {
    x_values[i] = stream.normal(i);
    y_values[i] = stream.normal(elements + i);
  }
  std::vector<int32_t> from, to, limits;
  const auto R = static_cast<int32_t>(shape[0]);
  for (int32_t r = 0; 2 * r + 1 < R; ++r) {
    from.push_back(r % 3 == 2 ? -1 : R - 1 - 2 * r);
    to.push_back(2 * r + 1);
    limits.push_back(r % (static_cast<int32_t>(shape[1]) + 1));
  }
  const Argument& x = trial.literal("x_X", Role::kIn, dtype, shape, Quantity::kExact, x_values);
  const Argument& from_R = trial.integers("from_R", from);
  const Argument& y = trial.literal("y_X", Role::kInOut, dtype, shape, Quantity::kExact, y_values);
  const Argument& to_R = trial.integers("to_R", to);
  const Argument* counts_R = counts ? &trial.integers("counts_R", limits) : nullptr;
  trial.run([&](const Context& context, const Pick& pick) {
    ops::copy_rows(context, {pick(x), pick(from_R), pick(y), pick(to_R), pick(counts_R)});
  });
}

}  // namespace

void add_update_cases(std::vector<OpCase>& cases) {
  add_adamw(cases);
  for (const bool in_place : {false, true}) {
    const std::string what = in_place ? ", in place" : "";
    cases.push_back(
        {"elementwise", "add R=63 D=64" + what, CaseSet::kSmall,
         [=](const CaseRun& run) { add_case(run, 63, 64, Placement::kStridedRows, in_place); }});
    cases.push_back(
        {"elementwise", "add R=17 D=33" + what, CaseSet::kSmall,
         [=](const CaseRun& run) { add_case(run, 17, 33, Placement::kOddRows, in_place); }});
  }
  cases.push_back({"elementwise", "add R=1000 D=1024", CaseSet::kFull, [](const CaseRun& run) {
                     add_case(run, 1000, 1024, Placement::kContiguous, false);
                   }});
  for (const DType from : {DType::kF32, DType::kBF16}) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      const std::string name =
          "convert " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to));
      cases.push_back({"elementwise", name, CaseSet::kSmall,
                       [=](const CaseRun& run) { convert_case(run, 1001, from, to); }});
    }
  }
  for (const int64_t R : {1, 63, 1000, 100003}) {
    cases.push_back({"elementwise", "sum_to R=" + std::to_string(R),
                     R < 10000 ? CaseSet::kSmall : CaseSet::kFull,
                     [=](const CaseRun& run) { sum_to_case(run, R); }});
  }
  for (const int64_t X : {1, 63, 1000, 1000003}) {
    cases.push_back({"elementwise", "checksum X=" + std::to_string(X),
                     X < 10000 ? CaseSet::kSmall : CaseSet::kFull,
                     [=](const CaseRun& run) { checksum_case(run, X); }});
  }
  const auto add_copy = [&cases](CaseSet set, DType dtype, const Shape& shape, bool counts) {
    cases.push_back({"elementwise",
                     "copy_rows " + std::string(dtype_name(dtype)) + " " + to_string(shape) +
                         (counts ? ", up to counts" : ""),
                     set, [=](const CaseRun& run) { copy_rows_case(run, dtype, shape, counts); }});
  };
  add_copy(CaseSet::kSmall, DType::kF32, {9, 4, 8}, false);
  add_copy(CaseSet::kSmall, DType::kBF16, {9, 5, 7}, true);
  add_copy(CaseSet::kSmall, DType::kF32, {8, 3, 2}, true);
  add_copy(CaseSet::kFull, DType::kBF16, {64, 64, 1024}, false);
  cases.push_back({"elementwise", "row_argmax R=9 N=97", CaseSet::kSmall,
                   [](const CaseRun& run) { row_argmax_case(run, 9, 97, Placement::kOddRows); }});
  cases.push_back(
      {"elementwise", "row_argmax R=5 N=10000", CaseSet::kSmall,
       [](const CaseRun& run) { row_argmax_case(run, 5, 10000, Placement::kContiguous); }});
  cases.push_back({"elementwise", "row_argmax R=3 N=1", CaseSet::kSmall,
                   [](const CaseRun& run) { row_argmax_case(run, 3, 1, Placement::kContiguous); }});
}

}  // namespace deltatrain::verify
