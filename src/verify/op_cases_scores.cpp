// Cases of token_scores and token_choices.
#include <cmath>
#include <limits>

#include "ops/token_choices.h"
#include "ops/token_scores.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

std::string sizes(int64_t R, int64_t N) {
  return "R=" + std::to_string(R) + " N=" + std::to_string(N);
}

// --- token_scores

// Several tokens of some rows and none of others; the largest logit twice in every third row, a row with NaN and one
// with infinity.
void token_scores_case(const CaseRun& run, int64_t R, int64_t N, double deviation,
                       ops::TokenScores::Rounding rounding) {
  OpTrial trial = run.trial("token_scores");
  const RandomStream stream(7, "token scores");
  std::vector<double> logits(static_cast<size_t>(R * N));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = deviation * stream.normal(i);
  std::vector<int32_t> rows, ids;
  for (int64_t r = R; r-- > 0;) {
    double* const row = logits.data() + r * N;
    const int64_t top = r % N;
    row[top] = 9 * deviation;
    if (r % 3 == 1) row[N - 1] = row[top];
    if (r % 7 == 3) row[N / 2] = std::numeric_limits<double>::quiet_NaN();
    if (r % 7 == 4) row[N / 2] = std::numeric_limits<double>::infinity();
    if (r % 5 == 4) continue;
    for (const int64_t id : {top, N - 1, (r * 31 + 5) % N}) {
      rows.push_back(static_cast<int32_t>(r));
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  const Argument& logits_RN = trial.activation("logits_RN", {R, N}, logits);
  const Argument& rows_T = trial.integers("rows_T", rows);
  const Argument& ids_T = trial.integers("ids_T", ids);
  const auto T = static_cast<int64_t>(rows.size());
  const bool rounds = rounding == ops::TokenScores::Rounding::kBf16;
  const Argument& log_probability = trial.statistic_output(
      "log_probability_T", {T}, rounds ? Quantity::kRounded : Quantity::kStatistic);
  const Argument& is_greedy = trial.argument("is_greedy_T", Role::kOut, DType::kI32, {T},
                                             Quantity::kExact, std::vector<double>(rows.size()));
  trial.run([&](const Context& context, const Pick& pick) {
    ops::token_scores(context, {pick(logits_RN), pick(rows_T), pick(ids_T), pick(log_probability),
                                pick(is_greedy), rounding});
  });
}

void add_token_scores(std::vector<OpCase>& cases) {
  using Rounding = ops::TokenScores::Rounding;
  const auto add = [&cases](CaseSet set, int64_t R, int64_t N, double deviation,
                            Rounding rounding) {
    cases.push_back(
        {"token_scores",
         sizes(R, N) + (deviation > 5 ? ", large logits" : "") +
             (rounding == Rounding::kBf16 ? ", rounded" : ""),
         set, [=](const CaseRun& run) { token_scores_case(run, R, N, deviation, rounding); }});
  };
  for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
    add(CaseSet::kSmall, 17, 1000, 1, rounding);
    add(CaseSet::kSmall, 9, 333, 10, rounding);
    add(CaseSet::kSmall, 1, 2, 1, rounding);
    add(CaseSet::kFull, 40, 128256, 2, rounding);
  }
}

// --- token_choices

// Where the logits of a case come from.
enum class Logits { kNormal, kFewValues, kWide };

// Rows differ in what is asked of them: drawn or given, with and without top_k and top_p, few and many of the most likely;
// among them rows that have none.
void token_choices_case(const CaseRun& run, int64_t R, int64_t N, int64_t X, Logits kind) {
  OpTrial trial = run.trial("token_choices");
  const RandomStream stream(11, "token choices");
  std::vector<double> logits(static_cast<size_t>(R * N));
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = stream.normal(i);
    logits[i] = kind == Logits::kNormal      ? 2 * x
                : kind == Logits::kFewValues ? std::floor(3 * x) / 4
                                             : std::sinh(3 * x) * 1e3;
  }
  std::vector<int32_t> given, top_k, num_top;
  std::vector<double> temperature, top_p, uniform;
  for (int64_t r = 0; r < R; ++r) {
    double* const row = logits.data() + r * N;
    if (r % 11 == 5) row[N / 2] = std::numeric_limits<double>::quiet_NaN();
    if (r % 11 == 7) row[N / 3] = std::numeric_limits<double>::infinity();
    for (int64_t n = 0; r % 4 == 3 && n < N; n += 3)
      row[n] = -std::numeric_limits<double>::infinity();
    constexpr double kTemperatures[] = {1, 0, 0.7, 5, 1e-3, 100};
    constexpr double kShares[] = {1, 0.9, 0.5, 0, 0.999999};
    constexpr int32_t kCounts[] = {0, 1, 40, 0, 3, 1 << 30};
    given.push_back(r % 5 == 4 ? static_cast<int32_t>((r * 37 + 1) % N) : -1);
    temperature.push_back(kTemperatures[r % 6] * (kind == Logits::kWide ? 1e3 : 1));
    top_p.push_back(kShares[r / 2 % 5]);
    top_k.push_back(kCounts[r / 3 % 6]);
    num_top.push_back(static_cast<int32_t>(r % 3 == 0 ? 0 : (r * 5 + 1) % (X + 1)));
    uniform.push_back(r == 0 ? 0 : stream.uniform(static_cast<uint64_t>(r)));
  }
  const auto numbers = [&](const char* name, const std::vector<double>& values) -> const Argument& {
    return trial.argument(name, Role::kIn, DType::kF64, {R}, Quantity::kExact, values);
  };
  const auto ids = [&](const char* name, const Shape& shape) -> const Argument& {
    return trial.argument(name, Role::kOut, DType::kI32, shape, Quantity::kExact,
                          std::vector<double>(static_cast<size_t>(shape.num_elements())));
  };
  const Argument& logits_RN = trial.activation("logits_RN", {R, N}, logits);
  const Argument& given_R = trial.integers("given_R", given);
  const Argument& temperature_R = numbers("temperature_R", temperature);
  const Argument& top_p_R = numbers("top_p_R", top_p);
  const Argument& uniform_R = numbers("uniform_R", uniform);
  const Argument& top_k_R = trial.integers("top_k_R", top_k);
  const Argument& num_top_R = trial.integers("num_top_R", num_top);
  const Argument& id_R = ids("id_R", {R});
  const Argument& logit_R = trial.statistic_output("logit_R", {R}, Quantity::kExact);
  const Argument& lse_R = trial.statistic_output("lse_R", {R}, Quantity::kStatistic);
  const Argument& top_ids_RX = ids("top_ids_RX", {R, X});
  const Argument& top_logits_RX = trial.statistic_output("top_logits_RX", {R, X}, Quantity::kExact);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::token_choices(context, {.logits_RN = pick(logits_RN),
                                 .given_R = pick(given_R),
                                 .temperature_R = pick(temperature_R),
                                 .top_p_R = pick(top_p_R),
                                 .uniform_R = pick(uniform_R),
                                 .top_k_R = pick(top_k_R),
                                 .num_top_R = pick(num_top_R),
                                 .id_R = pick(id_R),
                                 .logit_R = pick(logit_R),
                                 .lse_R = pick(lse_R),
                                 .top_ids_RX = pick(top_ids_RX),
                                 .top_logits_RX = pick(top_logits_RX)});
  });
}

void add_token_choices(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t N, int64_t X, Logits kind) {
    cases.push_back({"token_choices",
                     sizes(R, N) + (kind == Logits::kFewValues ? ", few values"
                                    : kind == Logits::kWide    ? ", wide"
                                                               : ""),
                     set, [=](const CaseRun& run) { token_choices_case(run, R, N, X, kind); }});
  };
  for (const Logits kind : {Logits::kNormal, Logits::kFewValues, Logits::kWide}) {
    add(CaseSet::kSmall, 67, 1000, 20, kind);
    add(CaseSet::kSmall, 40, 333, 7, kind);
  }
  add(CaseSet::kSmall, 30, 1, 2, Logits::kNormal);
  add(CaseSet::kSmall, 12, 16385, 64, Logits::kFewValues);
  add(CaseSet::kFull, 33, 128256, 20, Logits::kNormal);
  add(CaseSet::kFull, 12, 128256, 20, Logits::kFewValues);
}

}  // namespace

void add_score_cases(std::vector<OpCase>& cases) {
  add_token_scores(cases);
  add_token_choices(cases);
}

}  // namespace deltatrain::verify
