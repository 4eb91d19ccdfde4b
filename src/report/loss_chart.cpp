#include "report/loss_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace deltatrain::report {

namespace {

constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 72, kRight = 24, kTop = 56, kBottom = 64;
// Colour-blind safe (Okabe and Ito), dark enough on white.
constexpr std::array<const char*, 6> kColours = {"#0072b2", "#d55e00", "#009e73",
                                                 "#cc79a7", "#e69f00", "#56b4e9"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// 1, 2 or 5 times a power of ten, such that about `count` steps cover the range.
double tick_step(const Range& range, int count) {
  const double raw = (range.high - range.low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::vector<MetricPoint> moving_mean(const std::vector<MetricPoint>& points) {
  const size_t window = std::max<size_t>(1, points.size() / 100);
  std::vector<MetricPoint> means;
  double sum = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    sum += points[i].loss;
    if (i >= window) sum -= points[i - window].loss;
    means.push_back({points[i].step, sum / static_cast<double>(std::min(i + 1, window))});
  }
  return means;
}

class Chart {
 public:
  Chart(const Range& x, const Range& y) : x_(x), y_(y) {}

  double at_x(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double at_y(double value) const {
    const double share = (std::clamp(value, y_.low, y_.high) - y_.low) / (y_.high - y_.low);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }

  void axes() {
    const double bottom = kHeight - kBottom, right = kWidth - kRight;
    for (const double step = tick_step(y_, 7); const double value : ticks(y_, step)) {
      const double y = at_y(value);
      svg_ += fmt::format("<line x1='{}' y1='{:.1f}' x2='{}' y2='{:.1f}' stroke='#e3e3e3'/>\n",
                          kLeft, y, right, y);
      svg_ += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n", kLeft - 8,
                          y + 4, rounded(value, step));
    }
    for (const double step = tick_step(x_, 8); const double value : ticks(x_, step)) {
      const double x = at_x(value);
      svg_ += fmt::format("<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2}' stroke='#888'/>\n", x,
                          bottom, bottom + 5);
      svg_ += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:.0f}</text>\n", x,
                          bottom + 20, value);
    }
    svg_ += fmt::format("<path d='M{0} {1}V{2}H{3}' fill='none' stroke='#888'/>\n", kLeft, kTop,
                        bottom, right);
    svg_ += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>step</text>\n",
                        (kLeft + right) / 2, kHeight - 18);
    svg_ += fmt::format(
        "<text transform='translate(20 {:.1f}) rotate(-90)' text-anchor='middle'>loss, nats per "
        "token</text>\n",
        (kTop + bottom) / 2);
  }

  void line(const std::vector<MetricPoint>& points, const char* colour, double width,
            double opacity) {
    // At most about two points per pixel: the lowest and highest of each column, in order.
    std::string path;
    size_t begin = 0;
    while (begin < points.size()) {
      const auto column = static_cast<int64_t>(at_x(static_cast<double>(points[begin].step)));
      size_t end = begin, low = begin, high = begin;
      while (end < points.size() &&
             static_cast<int64_t>(at_x(static_cast<double>(points[end].step))) == column) {
        if (points[end].loss < points[low].loss) low = end;
        if (points[end].loss > points[high].loss) high = end;
        ++end;
      }
      for (const size_t i : {std::min(low, high), std::max(low, high)}) {
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L',
                            at_x(static_cast<double>(points[i].step)), at_y(points[i].loss));
        if (low == high) break;
      }
      begin = end;
    }
    svg_ += fmt::format(
        "<path d='{}' fill='none' stroke='{}' stroke-width='{}' stroke-opacity='{}' "
        "stroke-linejoin='round'/>\n",
        path, colour, width, opacity);
  }

  void dots(const std::vector<MetricPoint>& points, const char* colour) {
    for (const MetricPoint& point : points) {
      svg_ += fmt::format(
          "<circle cx='{:.1f}' cy='{:.1f}' r='4' fill='white' stroke='{}' stroke-width='2'/>\n",
          at_x(static_cast<double>(point.step)), at_y(point.loss), colour);
    }
  }

  void legend(size_t row, const std::string& text, const char* colour) {
    const double y = kTop + 18 + 20 * static_cast<double>(row);
    svg_ += fmt::format("<line x1='{}' y1='{}' x2='{}' y2='{}' stroke='{}' stroke-width='3'/>\n",
                        kLeft + 300, y - 4, kLeft + 324, y - 4, colour);
    svg_ += fmt::format("<text x='{}' y='{}'>{}</text>\n", kLeft + 332, y, escaped(text));
  }

  std::string finish(const std::string& title) const {
    return fmt::format(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' width='{0}' height='{1}' "
        "font-family='sans-serif' font-size='13' fill='#333'>\n<rect width='{0}' height='{1}' "
        "fill='white'/>\n"
        "<text x='{2}' y='32' font-size='18'>{3}</text>\n{4}</svg>\n",
        kWidth, kHeight, kLeft, escaped(title), svg_);
  }

 private:
  static std::vector<double> ticks(const Range& range, double step) {
    // Counted, because very large losses do not change when a step is added to them.
    constexpr int kMostTicks = 32;
    std::vector<double> values;
    for (int i = 0; i < kMostTicks; ++i) {
      const double value = (std::ceil(range.low / step) + i) * step;
      if (!(value <= range.high + step * 1e-9)) break;
      values.push_back(value);
    }
    return values;
  }
  static double rounded(double value, double step) { return std::round(value / step) * step; }

  Range x_, y_;
  std::string svg_;
};

// The range of losses to show: a few very high first steps would flatten the rest.
Range loss_range(std::span<const RunMetrics> runs) {
  Range range;
  std::vector<double> losses;
  for (const RunMetrics& run : runs) {
    for (const MetricPoint& point : run.losses) losses.push_back(point.loss);
    for (const MetricPoint& point : run.validation) range.include(point.loss);
  }
  if (!losses.empty()) {
    std::sort(losses.begin(), losses.end());
    range.include(losses.front());
    range.include(losses.size() < 200 ? losses.back() : losses[losses.size() * 99 / 100]);
  }
  // Damaged files hold such losses; within these bounds no difference overflows.
  constexpr double kMost = 1e300;
  range.low = std::clamp(range.low, -kMost, kMost);
  range.high = std::clamp(range.high, -kMost, kMost);
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  const double margin = std::max({0.05 * (range.high - range.low), 1e-3, 1e-6 * size});
  return {range.low - margin, range.high + margin};
}

}  // namespace

std::string loss_chart_svg(std::span<const RunMetrics> runs) {
  Range steps;
  for (const RunMetrics& run : runs) {
    for (const auto* points : {&run.losses, &run.validation}) {
      for (const MetricPoint& point : *points) steps.include(static_cast<double>(point.step));
    }
  }
  if (!(steps.low <= steps.high))
    throw ConfigError(error_text("", "plot", "a run with at least one loss", "none"));
  if (steps.low == steps.high) steps.high = steps.low + 1;
  Chart chart(steps, loss_range(runs));
  chart.axes();
  for (size_t i = 0; i < runs.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    chart.line(runs[i].losses, colour, 1, 0.3);
    chart.line(moving_mean(runs[i].losses), colour, 2.5, 1);
    chart.dots(runs[i].validation, colour);
    std::string label = runs[i].name;
    if (!runs[i].losses.empty())
      label += fmt::format(": last step {:.4f}", runs[i].losses.back().loss);
    if (!runs[i].validation.empty())
      label += fmt::format(", validation (dots) {:.4f}", runs[i].validation.back().loss);
    chart.legend(i, label, colour);
  }
  return chart.finish("Training loss");
}

}  // namespace deltatrain::report
