#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "report/comparison_text.h"
#include "report/page_template.h"

namespace deltatrain::report {

namespace {

struct Curve {
  std::vector<double> x, y;
};

// The lowest and highest point of each of kStretches stretches of points, in order.
Curve thinned(Curve curve) {
  constexpr size_t kStretches = 3000;
  const size_t size = curve.x.size();
  if (size <= 2 * kStretches) return curve;
  Curve thin;
  for (size_t k = 0; k < kStretches; ++k) {
    const size_t begin = size * k / kStretches, end = size * (k + 1) / kStretches;
    size_t low = begin, high = begin;
    for (size_t i = begin; i < end; ++i) {
      if (curve.y[i] < curve.y[low]) low = i;
      if (curve.y[i] > curve.y[high]) high = i;
    }
    for (const size_t i : {std::min(low, high), std::max(low, high)}) {
      if (!thin.x.empty() && thin.x.back() >= curve.x[i]) continue;
      thin.x.push_back(curve.x[i]);
      thin.y.push_back(curve.y[i]);
    }
  }
  return thin;
}

void add_numbers(std::string& text, const std::vector<double>& values) {
  text += '[';
  for (size_t i = 0; i < values.size(); ++i)
    fmt::format_to(std::back_inserter(text), "{}{:.7g}", i > 0 ? "," : "", values[i]);
  text += ']';
}

// {"x":[...],"y":[...]}, seven digits.
std::string curve_json(const Curve& curve) {
  const Curve thin = thinned(curve);
  std::string text = "{\"x\":[";
  for (size_t i = 0; i < thin.x.size(); ++i)  // steps keep all their digits
    fmt::format_to(std::back_inserter(text), "{}{:.16g}", i > 0 ? "," : "", thin.x[i]);
  text += "],\"y\":";
  add_numbers(text, thin.y);
  return text + "}";
}

std::string series_json(const Series& series) {
  Curve curve;
  for (const MetricPoint& point : series) {
    curve.x.push_back(static_cast<double>(point.step));
    curve.y.push_back(point.value);
  }
  return curve_json(curve);
}

double middle(int64_t begin, int64_t end) {
  return static_cast<double>(begin) + (static_cast<double>(end - begin) + 1) / 2;
}

// Any value as JSON; bytes that are no UTF-8 are replaced.
std::string dumped(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string run_json(const RunRecord& run) {
  constexpr size_t kMostEvents = 5000, kMostSamples = 200;
  std::string text = fmt::format("{{\"name\":{},\"format\":{},\"divisor\":{:.9g},\"total\":{}",
                                 dumped(run.name), dumped(format_name(run.format)), run.divisor,
                                 run.total_steps ? std::to_string(*run.total_steps) : "null");
  Curve losses;
  int64_t last = 0;
  for (const LossWindow& window : run.losses) {
    last = window.end;
    if (!std::isfinite(window.loss)) continue;
    const double x = middle(window.begin, window.end);
    // A window inside of the next may have its middle before that one's.
    if (!losses.x.empty() && losses.x.back() >= x) continue;
    losses.x.push_back(x);
    losses.y.push_back(window.loss);
  }
  text += fmt::format(",\"last\":{},\"loss\":{},\"series\":{{", last, curve_json(losses));
  const std::pair<const char*, const Series*> series[] = {
      {"validation", &run.validation},    {"lr", &run.learning_rate},
      {"norm", &run.gradient_norm},       {"seconds", &run.step_seconds},
      {"tokens", &run.tokens_per_second}, {"mfu", &run.utilization},
      {"device", &run.device_bytes},      {"host", &run.host_bytes},
      {"clock", &run.clock_mhz},          {"power", &run.power_watts}};
  bool first = true;
  for (const auto& [name, values] : series) {
    if (values->empty()) continue;
    text += fmt::format("{}\"{}\":{}", first ? "" : ",", name, series_json(*values));
    first = false;
  }
  text += "},\"parts\":{";
  first = true;
  for (const auto& [name, values] : run.part_seconds) {
    text += fmt::format("{}{}:{}", first ? "" : ",", dumped(name), series_json(values));
    first = false;
  }
  text += "},\"events\":[";
  size_t events = 0;
  for (const RunEvent& event : run.events) {
    if (event.kind == RunEventKind::kResume || events >= kMostEvents) continue;
    const char* const kind = event.kind == RunEventKind::kSpike ? "spike" : "not finite";
    text += fmt::format("{}[{},\"{}\"]", events > 0 ? "," : "", event.step, kind);
    ++events;
  }
  nlohmann::json samples = nlohmann::json::array();
  const size_t skipped = run.samples.size() > kMostSamples ? run.samples.size() - kMostSamples : 0;
  for (size_t i = skipped; i < run.samples.size(); ++i) {
    const TextSample& sample = run.samples[i];
    samples.push_back({{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}});
  }
  text += fmt::format("],\"samples\":{},\"notes\":{},\"state\":\"\",\"offset\":0,\"rest\":\"\"}}",
                      dumped(samples), dumped(run.notes));
  return text;
}

std::string pair_json(const PairComparison& pair, size_t b) {
  Curve percent;
  for (const EqualWindow& window : pair.windows) {
    if (!std::isfinite(window.difference_percent())) continue;
    percent.x.push_back(middle(window.begin, window.end));
    percent.y.push_back(window.difference_percent());
  }
  return fmt::format("{{\"a\":0,\"b\":{},\"percent\":{},\"rows\":{},\"summary\":{}}}", b,
                     curve_json(percent), dumped(loss_table(pair).rows),
                     dumped(summary_table(pair).rows));
}

std::string fill_template(const std::string& data) {
  constexpr std::string_view kPlace = "<!--data-->";
  std::string page = kPageTemplate;
  const size_t at = page.find(kPlace);
  DELTATRAIN_CHECK(at != std::string::npos, "page.html has no place for the data");
  // Nothing in the data may end the script element that they stand in.
  std::string safe;
  safe.reserve(data.size());
  for (const char c : data) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return page.replace(at, kPlace.size(), safe);
}

}  // namespace

std::string runs_page(std::span<const RunRecord> runs, std::span<const PairComparison> pairs,
                      const ComparisonOptions& options, const std::string& title) {
  std::string data = fmt::format("{{\"title\":{},\"live\":false,\"runs\":[", dumped(title));
  std::vector<const RunRecord*> all;
  std::vector<std::string> notes, states;
  for (const RunRecord& run : runs) {
    data += (all.empty() ? "" : ",") + run_json(run);
    all.push_back(&run);
    states.push_back(fmt::format("{}: {}", run.name, format_name(run.format)));
  }
  data += "],\"pairs\":[";
  for (size_t i = 0; i < pairs.size(); ++i) {
    data += (i > 0 ? "," : "") + pair_json(pairs[i], i + 1);
    for (const std::string& note : pairs[i].notes) notes.push_back(pairs[i].b.name + ": " + note);
  }
  data += fmt::format("],\"speed\":{},\"notes\":{},\"state\":{}}}",
                      dumped(speed_table(all, options).rows), dumped(notes),
                      dumped(fmt::format("{}", fmt::join(states, "; "))));
  return fill_template(data);
}

std::string live_page(const std::string& title) {
  return fill_template(
      fmt::format("{{\"title\":{},\"live\":true,\"runs\":[],\"pairs\":[],"
                  "\"speed\":[],\"notes\":[],\"state\":\"\"}}",
                  dumped(title)));
}

}  // namespace deltatrain::report
