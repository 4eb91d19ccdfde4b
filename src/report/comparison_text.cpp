#include "report/comparison_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace deltatrain::report {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDelta = "\u0394%";

// One cell: names come from files.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      result += ' ';
      continue;
    }
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string loss_cell(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "";
}

std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string number_or_dash(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "\u2013";
}

std::string run_line(const char* letter, const RunRecord& run) {
  std::string line = fmt::format("{}: {} ({}", letter, cell(run.name), format_name(run.format));
  if (run.divisor != 1) line += fmt::format(", losses / {:g}", run.divisor);
  line += ")";
  return line;
}

std::string steps_text(const EqualWindow& window) {
  return fmt::format("{}-{}", window.begin + 1, window.end);
}

void add_table(std::string& text, const TextTable& table) {
  const auto add_row = [&](const std::vector<std::string>& row) {
    text += "|";
    for (const std::string& value : row) text += " " + cell(value) + " |";
    text += "\n";
  };
  add_row(table.head);
  text += "|";
  for (size_t i = 0; i < table.head.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : table.rows) add_row(row);
}

void add_pair(std::string& text, const PairComparison& pair) {
  text += run_line("A", pair.a) + "\n" + run_line("B", pair.b) + "\n\n";
  add_table(text, loss_table(pair));
  text += "\n";
  add_table(text, summary_table(pair));
  text += "\n";
  for (const std::string& note : pair.notes) text += "- " + cell(note) + "\n";
  for (const RunRecord* run : {&pair.a, &pair.b}) {
    for (const std::string& note : run->notes)
      text += fmt::format("- {}: {}\n", cell(run->name), cell(note));
    if (run->ignored_lines > 0)
      text += fmt::format("- {}: {} lines cut off or damaged, left out\n", cell(run->name),
                          run->ignored_lines);
  }
  text += "\n";
}

Json optional_json(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}
Json optional_json(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(); }

Json window_json(const std::optional<EqualWindow>& window) {
  if (!window) return {};
  return {{"first_step", window->begin + 1},
          {"last_step", window->end},
          {"a", window->a},
          {"b", window->b},
          {"percent", optional_json(std::optional(window->difference_percent()))}};
}

Json run_json(const RunRecord& run, const ComparisonOptions& options) {
  const RunSpeed speed = speed_of(run, options.steady_after);
  int64_t skipped = 0, non_finite = 0, spikes = 0;
  for (const RunEvent& event : run.events) {
    skipped += event.kind == RunEventKind::kSkipped ? 1 : 0;
    non_finite += event.kind == RunEventKind::kNonFinite ? 1 : 0;
    spikes += event.kind == RunEventKind::kSpike ? 1 : 0;
  }
  return {{"name", run.name},
          {"source", run.source},
          {"format", format_name(run.format)},
          {"divisor", run.divisor},
          {"window_steps", window_steps(run)},
          {"last_step", run.losses.empty() ? Json() : Json(run.losses.back().end)},
          {"warmup_steps", optional_json(run.warmup_steps)},
          {"ms_per_step", optional_json(speed.milliseconds)},
          {"steady_ms_per_step", optional_json(speed.steady_milliseconds)},
          {"tokens_per_second_per_device", optional_json(speed.tokens_per_second)},
          {"wall_seconds", optional_json(speed.wall_seconds)},
          {"skipped", skipped},
          {"not_finite", non_finite},
          {"spikes", spikes},
          {"ignored_lines", run.ignored_lines},
          {"notes", run.notes}};
}

// A field of CSV: in quotes where it has to be.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c;
    if (c == '"') quoted += c;
  }
  return quoted + "\"";
}

std::string csv_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{}", *value) : "";
}

}  // namespace

std::string signed_percent(double percent) {
  if (std::abs(percent) < 0.005) return "0.00";
  return fmt::format("{}{:.2f}", percent < 0 ? "\u2212" : "+", std::abs(percent));
}

TextTable loss_table(const PairComparison& pair) {
  TextTable table{{"iter", "A logged", "B logged", kDelta, "steps", "A", "B", kDelta, "Notes"}, {}};
  for (const ComparisonRow& row : pair.rows) {
    const auto raw = row.raw_percent();
    std::vector<std::string> cells = {std::to_string(row.iteration), loss_cell(row.raw_a),
                                      loss_cell(row.raw_b), raw ? signed_percent(*raw) : ""};
    if (row.equal) {
      cells.insert(cells.end(),
                   {steps_text(*row.equal), loss_cell(row.equal->a), loss_cell(row.equal->b),
                    signed_percent(row.equal->difference_percent())});
    } else {
      cells.resize(8);
    }
    cells.push_back(joined(row.notes));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

TextTable summary_table(const PairComparison& pair) {
  TextTable table{{"summary", "A", "B", "B against A"}, {}};
  const auto add = [&](const std::string& what, double a, double b) {
    table.rows.push_back(
        {what, loss_cell(a), loss_cell(b), signed_percent(100 * (b - a) / a) + " %"});
  };
  if (pair.mean_a && pair.mean_b)
    add(fmt::format("mean loss, steps {}-{}", *pair.range_begin, *pair.range_end), *pair.mean_a,
        *pair.mean_b);
  const EqualWindow& last = pair.windows.back();
  add("last loss, steps " + steps_text(last), last.a, last.b);
  if (pair.largest_gap)
    add(fmt::format("largest gap after warm-up ({} steps), steps {}", pair.warmup_steps,
                    steps_text(*pair.largest_gap)),
        pair.largest_gap->a, pair.largest_gap->b);
  const auto crossover = [&](const char* of, const std::optional<int64_t>& step) {
    table.rows.push_back({fmt::format("first crossover, {}", of), "", "",
                          step ? fmt::format("iteration {}", *step) : "none"});
  };
  crossover("equal windows", pair.first_crossover);
  crossover("logged values", pair.first_crossover_raw);
  return table;
}

TextTable speed_table(std::span<const RunRecord* const> runs, const ComparisonOptions& options) {
  TextTable table{{"run", "ms/step", fmt::format("ms/step after step {}", options.steady_after),
                   "tokens/s per device", "wall time, s"},
                  {}};
  for (const RunRecord* run : runs) {
    const RunSpeed speed = speed_of(*run, options.steady_after);
    table.rows.push_back({run->name, number_or_dash(speed.milliseconds, "{:.1f}"),
                          number_or_dash(speed.steady_milliseconds, "{:.1f}"),
                          number_or_dash(speed.tokens_per_second, "{:.0f}"),
                          number_or_dash(speed.wall_seconds, "{:.0f}")});
  }
  return table;
}

std::string comparison_markdown(std::span<const PairComparison> pairs,
                                const ComparisonOptions& options) {
  std::string text;
  for (const PairComparison& pair : pairs) add_pair(text, pair);
  if (pairs.empty()) return text;
  std::vector<const RunRecord*> runs = {&pairs.front().a};
  for (const PairComparison& pair : pairs) runs.push_back(&pair.b);
  add_table(text, speed_table(runs, options));
  return text;
}

std::string comparison_csv(std::span<const PairComparison> pairs) {
  std::string text =
      "a,b,iteration,a_logged,b_logged,logged_percent,first_step,last_step,a_mean,b_mean,percent,"
      "notes\n";
  for (const PairComparison& pair : pairs) {
    for (const ComparisonRow& row : pair.rows) {
      text +=
          fmt::format("{},{},{},{},{},{},", field(pair.a.name), field(pair.b.name), row.iteration,
                      csv_number(row.raw_a), csv_number(row.raw_b), csv_number(row.raw_percent()));
      if (row.equal) {
        text += fmt::format("{},{},{},{},{},", row.equal->begin + 1, row.equal->end,
                            csv_number(row.equal->a), csv_number(row.equal->b),
                            csv_number(row.equal->difference_percent()));
      } else {
        text += ",,,,,";
      }
      text += field(joined(row.notes)) + "\n";
    }
  }
  return text;
}

std::string comparison_json(std::span<const PairComparison> pairs,
                            const ComparisonOptions& options) {
  Json result{{"limits",
               {{"bit_perfect_loss", kBitPerfectLoss},
                {"equal_percent", kEqualPercent},
                {"matched_percent", kMatchedPercent},
                {"close_percent", kClosePercent},
                {"steady_after_steps", options.steady_after}}},
              {"runs", Json::array()},
              {"pairs", Json::array()}};
  if (!pairs.empty()) result["runs"].push_back(run_json(pairs.front().a, options));
  for (const PairComparison& pair : pairs) {
    result["runs"].push_back(run_json(pair.b, options));
    Json rows = Json::array();
    for (const ComparisonRow& row : pair.rows) {
      rows.push_back({{"iteration", row.iteration},
                      {"a", optional_json(row.raw_a)},
                      {"b", optional_json(row.raw_b)},
                      {"percent", optional_json(row.raw_percent())},
                      {"equal_window", window_json(row.equal)},
                      {"notes", row.notes}});
    }
    result["pairs"].push_back(
        {{"a", pair.a.name},
         {"b", pair.b.name},
         {"rows", rows},
         {"mean",
          {{"first_step", optional_json(pair.range_begin)},
           {"last_step", optional_json(pair.range_end)},
           {"a", optional_json(pair.mean_a)},
           {"b", optional_json(pair.mean_b)},
           {"percent", optional_json(pair.mean_percent())}}},
         {"last",
          window_json(pair.windows.empty() ? std::nullopt : std::optional(pair.windows.back()))},
         {"warmup_steps", pair.warmup_steps},
         {"largest_gap_after_warmup", window_json(pair.largest_gap)},
         {"first_crossover", optional_json(pair.first_crossover)},
         {"first_crossover_logged", optional_json(pair.first_crossover_raw)},
         {"notes", pair.notes}});
  }
  // Names of files may be in any encoding.
  return result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace deltatrain::report
