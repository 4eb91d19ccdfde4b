#include "report/run_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "report/canvas.h"
#include "text/utf8.h"

namespace deltatrain::report {

namespace {

constexpr double kWidth = 960, kLeft = 72, kRight = 24, kLegendRow = 20;
constexpr double kLossHeight = 420, kDifferenceHeight = 200, kAxisHeight = 56;
// Colour-blind safe (Okabe and Ito), dark enough on white.
constexpr std::array<Colour, 6> kColours = {{{0x00, 0x72, 0xb2},
                                             {0xd5, 0x5e, 0x00},
                                             {0x00, 0x9e, 0x73},
                                             {0xcc, 0x79, 0xa7},
                                             {0xe6, 0x9f, 0x00},
                                             {0x56, 0xb4, 0xe9}}};
constexpr Colour kInk = {0x33, 0x33, 0x33}, kGrid = {0xe3, 0xe3, 0xe3}, kAxis = {0x88, 0x88, 0x88},
                 kWhite = {0xff, 0xff, 0xff}, kAlarm = {0xc0, 0x00, 0x20};

Colour colour_of(size_t run) { return kColours[run % kColours.size()]; }
Colour faint(Colour colour) {
  colour.opacity = 0.3;
  return colour;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return !(low <= high); }
};

// Damaged files hold any number; within these bounds no difference overflows.
Range with_margin(Range range) {
  constexpr double kMost = 1e300;
  range.low = std::clamp(range.low, -kMost, kMost);
  range.high = std::clamp(range.high, -kMost, kMost);
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  const double margin = std::max({0.05 * (range.high - range.low), 1e-3, 1e-6 * size});
  return {range.low - margin, range.high + margin};
}

struct CurvePoint {
  double x = 0;
  double y = 0;
};
using LossCurve = std::vector<CurvePoint>;

double window_middle(int64_t begin, int64_t end) {
  return static_cast<double>(begin) + (static_cast<double>(end - begin) + 1) / 2;
}

LossCurve loss_curve(const RunRecord& run) {
  LossCurve curve;
  for (const LossWindow& window : run.losses) {
    if (std::isfinite(window.loss))
      curve.push_back({window_middle(window.begin, window.end), window.loss});
  }
  return curve;
}

// Means over windows around each point, so that they lie on the curve and not behind it.
LossCurve moving_mean(const LossCurve& curve) {
  const size_t half = curve.size() / 200;
  LossCurve means;
  double sum = 0;
  size_t begin = 0, end = 0;  // what `sum` is of
  for (size_t i = 0; i < curve.size(); ++i) {
    while (end < std::min(curve.size(), i + half + 1)) sum += curve[end++].y;
    while (begin + half < i) sum -= curve[begin++].y;
    means.push_back({curve[i].x, sum / static_cast<double>(end - begin)});
  }
  return means;
}

// Well-formed UTF-8 without control characters, not too long: names of folders can be anything.
std::string legend_text(const std::string& name) {
  constexpr size_t kMostBytes = 60;
  std::string text = text::replace_ill_formed_utf8(name);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (text.size() <= kMostBytes) return text;
  size_t end = kMostBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

// One coordinate system with its axes.
class Panel {
 public:
  Panel(Canvas& canvas, double top, double height, const Range& x, const Range& y)
      : canvas_(canvas), top_(top), bottom_(top + height), x_(x), y_(y) {}

  double at_x(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double at_y(double value) const {
    const double share = (std::clamp(value, y_.low, y_.high) - y_.low) / (y_.high - y_.low);
    return bottom_ - share * (bottom_ - top_);
  }
  double top() const { return top_; }

  void axes(const std::string& y_title) {
    const double right = kWidth - kRight;
    for (const double step = tick_step(y_, static_cast<int>((bottom_ - top_) / 55));
         const double value : ticks(y_, step)) {
      const double y = at_y(value);
      canvas_.polyline(std::array<Point, 2>{Point{kLeft, y}, Point{right, y}}, kGrid, 1);
      canvas_.text({kLeft - 8, y + 4}, fmt::format("{:g}", rounded(value, step)), 13,
                   TextAnchor::kEnd, kInk);
    }
    for (const double step = tick_step(x_, 8); const double value : ticks(x_, step)) {
      const double x = at_x(value);
      canvas_.polyline(std::array<Point, 2>{Point{x, bottom_}, Point{x, bottom_ + 5}}, kAxis, 1);
      canvas_.text({x, bottom_ + 20},
                   step < 1 ? fmt::format("{:g}", rounded(value, step))
                            : fmt::format("{:.0f}", rounded(value, step)),
                   13, TextAnchor::kMiddle, kInk);
    }
    canvas_.polyline(
        std::array<Point, 3>{Point{kLeft, top_}, Point{kLeft, bottom_}, Point{right, bottom_}},
        kAxis, 1);
    canvas_.text({(kLeft + right) / 2, bottom_ + 40}, "step", 13, TextAnchor::kMiddle, kInk);
    canvas_.text({20, (top_ + bottom_) / 2}, y_title, 13, TextAnchor::kMiddle, kInk, true);
  }

  void line(const LossCurve& curve, Colour colour, double width) {
    // At most about two points per pixel: the lowest and highest of each column, in order.
    std::vector<Point> path;
    size_t begin = 0;
    while (begin < curve.size()) {
      const auto column = static_cast<int64_t>(at_x(curve[begin].x));
      size_t end = begin, low = begin, high = begin;
      while (end < curve.size() && static_cast<int64_t>(at_x(curve[end].x)) == column) {
        if (curve[end].y < curve[low].y) low = end;
        if (curve[end].y > curve[high].y) high = end;
        ++end;
      }
      for (const size_t i : {std::min(low, high), std::max(low, high)}) {
        path.emplace_back(at_x(curve[i].x), at_y(curve[i].y));
        if (low == high) break;
      }
      begin = end;
    }
    canvas_.polyline(path, colour, width);
  }

  void dots(const LossCurve& curve, Colour colour) {
    for (const CurvePoint& point : curve)
      canvas_.circle({at_x(point.x), at_y(point.y)}, 4, kWhite, colour, 2);
  }

  // A triangle with its tip at the point, above it.
  void spike(double x, double y, Colour colour) {
    const double px = at_x(x), py = std::max(at_y(y) - 3, top_ + 8);
    canvas_.polyline(std::array<Point, 4>{Point{px, py}, Point{px - 4, py - 7},
                                          Point{px + 4, py - 7}, Point{px, py}},
                     colour, 1.5);
  }
  void edge_mark(double x, Colour colour) {
    canvas_.polyline(std::array<Point, 2>{Point{at_x(x), top_}, Point{at_x(x), top_ + 10}}, colour,
                     2);
  }

 private:
  // 1, 2 or 5 times a power of ten, such that about `count` steps cover the range.
  static double tick_step(const Range& range, int count) {
    const double raw = (range.high - range.low) / std::max(1, count);
    const double power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (raw <= factor * power) return factor * power;
    }
    return 10 * power;
  }
  static std::vector<double> ticks(const Range& range, double step) {
    // Counted, because very large numbers do not change when a step is added to them.
    constexpr int kMostTicks = 32;
    std::vector<double> values;
    for (int i = 0; i < kMostTicks; ++i) {
      const double value = (std::ceil(range.low / step) + i) * step;
      if (!(value <= range.high + step * 1e-9)) break;
      values.push_back(value);
    }
    return values;
  }
  static double rounded(double value, double step) { return std::round(value / step) * step + 0.0; }

  Canvas& canvas_;
  double top_, bottom_;
  Range x_, y_;
};

LossCurve as_curve(const Series& series) {
  LossCurve curve;
  for (const MetricPoint& point : series)
    curve.push_back({static_cast<double>(point.step), point.value});
  return curve;
}

// The range of losses to show: a few very high first steps would flatten the rest.
Range loss_range(std::span<const RunRecord> runs) {
  Range range;
  std::vector<double> losses;
  for (const RunRecord& run : runs) {
    for (const CurvePoint& point : loss_curve(run)) losses.push_back(point.y);
    for (const MetricPoint& point : run.validation) range.include(point.value);
  }
  if (!losses.empty()) {
    std::sort(losses.begin(), losses.end());
    range.include(losses.front());
    range.include(losses.size() < 200 ? losses.back() : losses[losses.size() * 99 / 100]);
  }
  return with_margin(range);
}

std::string run_label(const RunRecord& run) {
  std::string label = legend_text(run.name);
  const LossCurve curve = loss_curve(run);
  if (!curve.empty()) label += fmt::format(": last {:.4f}", curve.back().y);
  if (run.divisor != 1) label += fmt::format(" (logged / {:g})", run.divisor);
  if (!run.validation.empty())
    label += fmt::format(", validation (dots) {:.4f}", run.validation.back().value);
  int64_t spikes = 0, missing = 0;
  for (const RunEvent& event : run.events) {
    spikes += event.kind == RunEventKind::kSpike ? 1 : 0;
    missing += event.kind == RunEventKind::kNonFinite ? 1 : 0;
  }
  if (spikes > 0) label += fmt::format(", {} spike{} (triangles)", spikes, spikes == 1 ? "" : "s");
  if (missing > 0) label += fmt::format(", {} not finite (red)", missing);
  return label;
}

void draw_events(Panel& panel, const RunRecord& run, Colour colour) {
  // Runs gone wrong have very many: one mark per pixel is enough.
  std::map<int64_t, bool> marked;
  std::map<int64_t, double> loss_at;
  for (const LossWindow& window : run.losses) loss_at[window.end] = window.loss;
  for (const RunEvent& event : run.events) {
    const auto x = static_cast<double>(event.step);
    const auto column = static_cast<int64_t>(panel.at_x(x));
    if (event.kind == RunEventKind::kNonFinite && !marked[2 * column]) {
      marked[2 * column] = true;
      panel.edge_mark(x, kAlarm);
    }
    if (event.kind == RunEventKind::kSpike && !marked[2 * column + 1]) {
      marked[2 * column + 1] = true;
      panel.spike(x, loss_at[event.step], colour);
    }
  }
}

}  // namespace

std::string draw_runs(std::span<const RunRecord> runs, std::span<const PairComparison> pairs,
                      PictureKind kind) {
  Range steps, differences;
  for (const RunRecord& run : runs) {
    for (const CurvePoint& point : loss_curve(run)) steps.include(point.x);
    for (const MetricPoint& point : run.validation) steps.include(static_cast<double>(point.step));
  }
  if (steps.is_empty())
    throw ConfigError(error_text("", "plot", "a run with at least one loss", "none"));
  if (steps.low == steps.high) steps.high = steps.low + 1;
  std::vector<LossCurve> curves;
  for (const PairComparison& pair : pairs) {
    curves.emplace_back();
    for (const EqualWindow& window : pair.windows) {
      if (!std::isfinite(window.difference_percent())) continue;
      curves.back().push_back(
          {window_middle(window.begin, window.end), window.difference_percent()});
      differences.include(window.difference_percent());
    }
  }
  const double top = 44 + kLegendRow * static_cast<double>(runs.size()) + 10;
  const double middle_top = top + kLossHeight + kAxisHeight;
  const bool with_differences = !differences.is_empty();
  const double difference_top =
      middle_top + 12 + kLegendRow * static_cast<double>(pairs.size()) + 8;
  const double height =
      with_differences ? difference_top + kDifferenceHeight + kAxisHeight : middle_top;
  const auto canvas =
      kind == PictureKind::kSvg ? make_svg_canvas(kWidth, height) : make_png_canvas(kWidth, height);
  canvas->rectangle({0, 0}, kWidth, height, kWhite);
  canvas->text({kLeft, 28}, "Training loss", 18, TextAnchor::kStart, kInk);

  Panel losses(*canvas, top, kLossHeight, steps, loss_range(runs));
  losses.axes("loss, nats per token");
  for (size_t i = 0; i < runs.size(); ++i) {
    const double row = 52 + kLegendRow * static_cast<double>(i);
    canvas->polyline(std::array<Point, 2>{Point{kLeft, row - 4}, Point{kLeft + 24, row - 4}},
                     colour_of(i), 3);
    canvas->text({kLeft + 32, row}, run_label(runs[i]), 13, TextAnchor::kStart, kInk);
    const LossCurve curve = loss_curve(runs[i]);
    losses.line(curve, faint(colour_of(i)), 1);
    losses.line(moving_mean(curve), colour_of(i), 2.5);
    losses.dots(as_curve(runs[i].validation), colour_of(i));
    draw_events(losses, runs[i], colour_of(i));
  }
  if (with_differences) {
    differences.include(0);
    Panel panel(*canvas, difference_top, kDifferenceHeight, steps, with_margin(differences));
    panel.axes("difference, %");
    const std::array<Point, 2> zero = {Point{kLeft, panel.at_y(0)},
                                       Point{kWidth - kRight, panel.at_y(0)}};
    canvas->polyline(zero, kAxis, 1);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double row = middle_top + 12 + kLegendRow * static_cast<double>(i);
      const Colour colour = colour_of(i + 1);
      canvas->polyline(std::array<Point, 2>{Point{kLeft, row - 4}, Point{kLeft + 24, row - 4}},
                       colour, 3);
      canvas->text({kLeft + 32, row},
                   fmt::format("{} against {}, over equal windows", legend_text(pairs[i].b.name),
                               legend_text(pairs[i].a.name)),
                   13, TextAnchor::kStart, kInk);
      panel.line(curves[i], colour, 1.5);
    }
  }
  return canvas->finish();
}

}  // namespace deltatrain::report
