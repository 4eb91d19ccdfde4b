#include "report/megatron_log.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "report/run_builder.h"

namespace deltatrain::report {

namespace {

constexpr size_t kLongestRecord = 4096, kLongestPrefix = 512;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Without colour codes, ESC [ parameters letter.
std::string without_colours(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x1b') {
      plain += text[i];
      continue;
    }
    if (i + 1 >= text.size() || text[i + 1] != '[') continue;
    i += 2;
    while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x40) ++i;
  }
  return plain;
}

std::string without_spaces(std::string_view text) {
  std::string packed;
  for (const char c : text) {
    if (!is_space(c)) packed += c;
  }
  return packed;
}

// The number that `text` starts with.
std::optional<double> leading_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return {};
  return value;
}

std::optional<int64_t> take_step(std::string_view text, size_t& at) {
  while (at < text.size() && is_space(text[at])) ++at;
  int64_t value = 0;
  const char* const begin = text.data() + at;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc() || end == begin || !is_step(value)) return {};
  at += static_cast<size_t>(end - begin);
  return value;
}

bool take(std::string_view text, size_t& at, char wanted) {
  while (at < text.size() && is_space(text[at])) ++at;
  if (at >= text.size() || text[at] != wanted) return false;
  ++at;
  return true;
}

// Days since 1970-01-01 in the Gregorian calendar.
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

// "[2026-01-31 12:00:00.25", the last such stamp of `text`.
std::optional<double> find_stamp(std::string_view text) {
  for (size_t at = text.rfind('['); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind('[', at - 1)) {
    const std::string stamp(text.substr(at, 40));
    int year = 0, month = 0, day = 0, hour = 0, minute = 0;
    double second = 0;
    if (std::sscanf(stamp.c_str(), "[%4d-%2d-%2d %2d:%2d:%lf", &year, &month, &day, &hour, &minute,
                    &second) != 6)
      continue;
    if (month < 1 || month > 12 || day < 1 || day > 31 || !(second >= 0 && second < 61)) continue;
    return static_cast<double>(days_from_civil(year, month, day)) * 86400 + hour * 3600.0 +
           minute * 60.0 + second;
  }
  return {};
}

struct Marker {
  size_t begin = 0;  // of the word "iteration"
  size_t end = 0;    // behind the bar
  int64_t iteration = 0;
  int64_t total = 0;
};

std::optional<Marker> find_marker(std::string_view text, size_t from) {
  constexpr std::string_view kWord = "iteration";
  for (size_t at = text.find(kWord, from); at != std::string_view::npos;
       at = text.find(kWord, at + 1)) {
    size_t end = at + kWord.size();
    const auto iteration = take_step(text, end);
    if (!iteration || !take(text, end, '/')) continue;
    const auto total = take_step(text, end);
    if (!total || !take(text, end, '|')) continue;
    return Marker{at, end, *iteration, *total};
  }
  return {};
}

void take_field(MegatronRecord& record, const std::string& field) {
  const size_t colon = field.find(':');
  if (colon == std::string::npos) return;
  const std::string key = field.substr(0, colon), value = field.substr(colon + 1);
  const std::optional<double> number = leading_number(value);
  if (!number) return;
  // Not a number is no count.
  const int64_t count =
      *number > 0 ? static_cast<int64_t>(std::min(*number, static_cast<double>(kLargestStep))) : 0;
  if (key == "elapsedtimeperiteration(ms)") {
    record.milliseconds = number;
  } else if (key == "tokens/s/GPUinst/harmonicmean") {
    record.tokens_per_second = number;
    record.form = RunFormat::kMegatronPrimus;
  } else if (key == "tokensperGPU(tokens/s/GPU)") {
    record.tokens_per_second = number;
    record.form = RunFormat::kMegatronTokens;
  } else if (key == "learningrate") {
    record.learning_rate = number;
  } else if (key == "globalbatchsize") {
    record.global_batch_size = count;
  } else if (key == "lmloss") {
    record.loss = number;
  } else if (key == "gradnorm") {
    record.gradient_norm = number;
  } else if (key == "numberofskippediterations") {
    record.skipped = count;
  } else if (key == "numberofnaniterations") {
    record.nan = count;
  }
}

// Of consecutive lines, how many fit a log with a line at every multiple of `interval` and after
// the first iteration of each process.
int64_t fitting_pairs(const std::vector<MegatronRecord>& records, int64_t interval) {
  int64_t fitting = 0;
  for (size_t i = 1; i < records.size(); ++i) {
    const int64_t before = records[i - 1].iteration, after = records[i].iteration;
    if (after == (before / interval + 1) * interval) ++fitting;
  }
  return fitting;
}

// log_interval of the run, as far as the lines show it: 1 where they do not.
int64_t find_interval(const std::vector<MegatronRecord>& records) {
  constexpr size_t kMostCandidates = 32;
  std::set<int64_t> candidates;
  for (size_t i = 0; i < records.size() && candidates.size() < kMostCandidates; ++i) {
    const int64_t iteration = records[i].iteration;
    const int64_t gap = i > 0 ? iteration - records[i - 1].iteration : 0;
    if (iteration > 0) candidates.insert(iteration);
    if (gap > 0) candidates.insert(gap);
  }
  int64_t interval = 1, most = 0;
  for (const int64_t candidate : candidates) {
    const int64_t fitting = fitting_pairs(records, candidate);
    if (fitting > most) {
      interval = candidate;
      most = fitting;
    }
  }
  return interval;
}

}  // namespace

std::vector<MegatronRecord> find_megatron_records(std::string_view coloured) {
  const std::string plain = without_colours(coloured);
  const std::string_view text = plain;
  std::vector<MegatronRecord> records;
  auto marker = find_marker(text, 0);
  while (marker) {
    const auto next = find_marker(text, marker->end);
    MegatronRecord record{.iteration = marker->iteration, .total_iterations = marker->total};
    // What stands before it in its line, and not far away.
    std::string_view before = text.substr(0, marker->begin);
    if (before.size() > kLongestPrefix) before.remove_prefix(before.size() - kLongestPrefix);
    if (const size_t newline = before.rfind('\n'); newline != std::string_view::npos)
      before.remove_prefix(newline + 1);
    record.unix_seconds = find_stamp(before);
    size_t end = next ? next->begin : text.size();
    end = std::min(end, marker->end + kLongestRecord);
    std::string_view rest = text.substr(marker->end, end - marker->end);
    while (!rest.empty()) {
      const size_t bar = rest.find('|');
      if (bar == std::string_view::npos) break;  // cut off, or text behind the record
      const std::string field = without_spaces(rest.substr(0, bar));
      take_field(record, field);
      rest.remove_prefix(bar + 1);
      if (field.starts_with("numberofnaniterations:")) break;
    }
    records.push_back(record);
    marker = next;
  }
  return records;
}

Series find_megatron_validation(std::string_view coloured) {
  constexpr std::string_view kBegin = "validation loss at iteration", kValue = "lm loss value:";
  const std::string plain = without_colours(coloured);
  const std::string_view text = plain;
  Series series;
  for (size_t at = text.find(kBegin); at != std::string_view::npos; at = text.find(kBegin, at)) {
    at += kBegin.size();
    const auto step = take_step(text, at);
    const std::string_view rest = text.substr(at, 256);
    const size_t value = rest.find(kValue);
    if (!step || value == std::string_view::npos) continue;
    const auto loss = leading_number(without_spaces(rest.substr(value + kValue.size())));
    if (loss) RunBuilder::put(series, *step, *loss);
  }
  return series;
}

std::optional<RunRecord> read_megatron_log(const std::filesystem::path& file, std::string_view text,
                                           double divisor, double tokens_per_iteration_and_gpu) {
  const std::vector<MegatronRecord> records = find_megatron_records(text);
  if (records.empty()) return {};
  RunFormat form = RunFormat::kMegatron;
  for (const MegatronRecord& record : records) {
    if (record.form != RunFormat::kMegatron) form = record.form;
  }
  RunBuilder builder(file, form, divisor);
  RunRecord& run = builder.run();
  const int64_t interval = find_interval(records);
  int64_t last = -1, base = 0;  // base: where the means of the next line start
  std::optional<double> first_stamp, last_stamp;
  for (const MegatronRecord& record : records) {
    const bool multiple = record.iteration % interval == 0;
    // Only a process's first and its very last line are off the multiples.
    const bool off = !multiple && record.iteration != record.total_iterations;
    const bool restarted = last >= 0 && (record.iteration <= last || off);
    if (last < 0 || restarted) {
      // The first line of a process is of one iteration, but a log whose beginning is missing
      // starts with a line like the others.
      const bool headless = last < 0 && multiple && record.iteration >= interval;
      base = std::max<int64_t>(0, record.iteration - (headless ? interval : 1));
      if (restarted) builder.resume_at(record.iteration);
    }
    const int64_t size = record.iteration - base;
    const int64_t counted = std::max<int64_t>(0, size - record.skipped);
    builder.put_loss(base, record.iteration, record.loss.value_or(std::nan("")), counted);
    if (record.skipped > 0) builder.put_event(record.iteration, RunEventKind::kSkipped);
    if (record.nan > 0) builder.put_event(record.iteration, RunEventKind::kNonFinite);
    const double nothing = std::nan("");
    RunBuilder::put(run.learning_rate, record.iteration + 1,
                    record.learning_rate.value_or(nothing));
    RunBuilder::put(run.gradient_norm, record.iteration, record.gradient_norm.value_or(nothing));
    if (record.milliseconds) {
      RunBuilder::put(run.step_seconds, record.iteration, *record.milliseconds * 1e-3);
      if (!record.tokens_per_second && tokens_per_iteration_and_gpu > 0 && *record.milliseconds > 0)
        RunBuilder::put(run.tokens_per_second, record.iteration,
                        tokens_per_iteration_and_gpu / (*record.milliseconds * 1e-3));
    }
    RunBuilder::put(run.tokens_per_second, record.iteration,
                    record.tokens_per_second.value_or(nothing));
    if (record.unix_seconds) {
      // From the start of the iterations that the first line tells of.
      if (!first_stamp)
        first_stamp = *record.unix_seconds -
                      1e-3 * record.milliseconds.value_or(0) * static_cast<double>(size);
      last_stamp = record.unix_seconds;
    }
    run.total_steps = record.total_iterations;
    last = record.iteration;
    // The first line of a process does not start the means anew, unless it is due anyway.
    if (multiple || size > 1) base = record.iteration;
  }
  if (first_stamp && last_stamp && *last_stamp >= *first_stamp)
    run.wall_seconds = *last_stamp - *first_stamp;
  run.validation = find_megatron_validation(text);
  return builder.finish();
}

}  // namespace deltatrain::report
