#include "report/loss_chart.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace deltatrain::report {
namespace {

std::string chart(const std::vector<double>& losses) {
  std::vector<RunMetrics> runs(1);
  runs[0].name = "run";
  for (size_t i = 0; i < losses.size(); ++i)
    runs[0].losses.push_back({static_cast<int64_t>(i + 1), losses[i]});
  return loss_chart_svg(runs);
}

TEST(LossChartTest, PutsHigherLossesHigherUp) {
  const std::string svg = chart({4, 2});
  // The curve's first point, of the higher loss, has the smaller y.
  const size_t path = svg.find("<path d='M72.0 ");
  ASSERT_NE(path, std::string::npos) << svg;
  double y1 = 0, x2 = 0, y2 = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + path, "<path d='M72.0 %lfL%lf %lf", &y1, &x2, &y2), 3);
  EXPECT_LT(y1, y2);
  EXPECT_EQ(x2, 936);
}

// What a damaged metrics.jsonl may hold: adding a tick to such losses changes nothing, their
// difference overflows, or there is none.
TEST(LossChartTest, DrawsAnyFiniteLosses) {
  for (const std::vector<double>& losses :
       {std::vector<double>{1e17, 1e17 + 32}, {1e308, -1e308}, {1e300, 1e300}, {0, 0}, {-5e-324}}) {
    const std::string svg = chart(losses);
    EXPECT_EQ(svg.find("nan"), std::string::npos) << losses[0];
    EXPECT_EQ(svg.find("inf"), std::string::npos) << losses[0];
  }
}

}  // namespace
}  // namespace deltatrain::report
