#include "report/run_charts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace deltatrain::report {
namespace {

using ::testing::HasSubstr;

RunRecord run_of(const std::vector<double>& losses) {
  RunRecord run;
  run.name = "run";
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto step = static_cast<int64_t>(i);
    run.losses.push_back({step, step + 1, losses[i], 1});
  }
  return run;
}

std::string chart(const std::vector<RunRecord>& runs,
                  const std::vector<PairComparison>& pairs = {}) {
  return draw_runs(runs, pairs, PictureKind::kSvg);
}

TEST(RunChartsTest, PutsHigherLossesHigherUp) {
  const std::string svg = chart({run_of({4, 2})});
  // The faint curve: its first point, of the higher loss, has the smaller y.
  const size_t curve = svg.find("stroke-opacity='0.3'");
  ASSERT_NE(curve, std::string::npos) << svg;
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + svg.rfind("<path", curve), "<path d='M%lf %lfL%lf %lf", &x1,
                        &y1, &x2, &y2),
            4);
  EXPECT_LT(y1, y2);
  EXPECT_EQ(x1, 72);
  EXPECT_EQ(x2, 936);
}

// What a damaged log may hold: adding a tick to such losses changes nothing, their difference overflows, or there is
// none.
TEST(RunChartsTest, DrawsAnyFiniteLosses) {
  for (const std::vector<double>& losses :
       {std::vector<double>{1e17, 1e17 + 32}, {1e308, -1e308}, {1e300, 1e300}, {0, 0}, {-5e-324}}) {
    const std::string svg = chart({run_of(losses)});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << losses[0];
    EXPECT_EQ(svg.find("inf"), std::string::npos) << losses[0];
  }
}

TEST(RunChartsTest, MarksSpikesAndStepsWithoutALoss) {
  RunRecord run = run_of({4, 3, std::nan(""), 2});
  run.events = {{3, RunEventKind::kNonFinite}, {4, RunEventKind::kSpike}};
  const std::string svg = chart({run});
  EXPECT_THAT(svg, HasSubstr("1 spike (triangles), 1 not finite (red)"));
  EXPECT_THAT(svg, HasSubstr("stroke='#c00020'"));
  EXPECT_EQ(chart({run_of({4, 3, 2})}).find("#c00020"), std::string::npos);
}

TEST(RunChartsTest, DrawsDifferencesBelow) {
  const RunRecord a = run_of({4, 4}), b = run_of({4, 5});
  const std::string svg = chart({a, b}, {compare_runs(a, b, {})});
  EXPECT_THAT(svg, HasSubstr("run against run, over equal windows"));
  EXPECT_THAT(svg, HasSubstr("difference, %"));
  EXPECT_EQ(chart({a, b}).find("difference, %"), std::string::npos);
}

TEST(RunChartsTest, NamesAreWrittenAsTextAndRunsWithoutLossesRefused) {
  RunRecord run = run_of({1});
  run.name = "<script>&\x01\xff" + std::string(200, 'x');
  const std::string svg = chart({run});
  EXPECT_THAT(svg, HasSubstr("&lt;script&gt;&amp; \uFFFDxxx"));
  EXPECT_THAT(svg, HasSubstr("xxx...: last 1.0000"));
  EXPECT_THROW(chart({run_of({})}), ConfigError);
}

TEST(RunChartsTest, PngPicturesHaveTwiceTheSizeOrAreRefusedByName) {
  const std::vector<RunRecord> runs = {run_of({4, 3, 2})};
  std::string png;
  try {
    png = draw_runs(runs, {}, PictureKind::kPng);
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("PNG pictures: expected a build with Cairo"));
    GTEST_SKIP() << "built without Cairo";
  }
  ASSERT_GT(png.size(), 24U);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  const auto big_endian = [&](size_t at) {
    int64_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value * 256 + static_cast<unsigned char>(png[at + i]);
    return value;
  };
  EXPECT_EQ(big_endian(16), 2 * 960);
  const std::string svg = chart(runs);
  EXPECT_EQ(static_cast<double>(big_endian(20)),
            2 * std::stod(svg.substr(svg.find("height='") + 8)));
}

}  // namespace
}  // namespace deltatrain::report
