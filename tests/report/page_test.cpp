#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

namespace deltatrain::report {
namespace {

// The page's data, as a browser would read them.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

RunRecord small_run(const std::string& name) {
  RunRecord run;
  run.name = name;
  for (int64_t step = 1; step <= 4; ++step)
    run.losses.push_back({step - 1, step, 5 - static_cast<double>(step) / 3, 1});
  run.losses[2].loss = std::nan("");
  run.losses[2].counted = 0;
  run.events = {{3, RunEventKind::kNonFinite}, {4, RunEventKind::kResume}};
  run.learning_rate = {{1, 1e-4}};
  run.part_seconds["forward"] = {{1, 0.25}};
  run.samples = {{4, "Once", " upon </script> a time"}};
  return run;
}

TEST(PageTest, HoldsTheDataOfTheRuns) {
  const std::vector<RunRecord> runs = {small_run("a"), small_run("b")};
  const std::vector<PairComparison> pairs = {compare_runs(runs[0], runs[1], {})};
  const nlohmann::json data = data_of(runs_page(runs, pairs, {}, "title"));
  EXPECT_EQ(data.at("title"), "title");
  EXPECT_EQ(data.at("live"), false);
  ASSERT_EQ(data.at("runs").size(), 2U);
  const nlohmann::json& run = data.at("runs")[1];
  EXPECT_EQ(run.at("name"), "b");
  EXPECT_EQ(run.at("loss").at("x"), (std::vector<double>{1, 2, 4}));
  EXPECT_EQ(run.at("loss").at("y"), (std::vector<double>{4.666667, 4.333333, 3.666667}));
  EXPECT_EQ(run.at("series").at("lr").at("y"), std::vector<double>{1e-4});
  EXPECT_EQ(run.at("parts").at("forward").at("y"), std::vector<double>{0.25});
  EXPECT_EQ(run.at("events"), nlohmann::json::parse("[[3, \"not finite\"]]"));
  EXPECT_EQ(run.at("samples")[0].at("text"), " upon </script> a time");
  ASSERT_EQ(data.at("pairs").size(), 1U);
  EXPECT_EQ(data.at("pairs")[0].at("b"), 1);
}

TEST(PageTest, NeedsNothingFromElsewhere) {
  RunRecord run = small_run("<img src=http://example.org/x> \"\xff");
  const std::vector<RunRecord> runs = {run};
  const std::string page = runs_page(runs, {}, {}, run.name);
  // The only markup of the data's is text: every < of theirs is escaped.
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(data_of(page).at("runs")[0].at("name"), "<img src=http://example.org/x> \"\uFFFD");
  const std::string markup =
      std::regex_replace(live_page("x"), std::regex("http://www.w3.org/2000/svg"), "");
  EXPECT_EQ(markup.find("http:"), std::string::npos);
  EXPECT_EQ(markup.find("https:"), std::string::npos);
  EXPECT_EQ(markup.find("@import"), std::string::npos);
  EXPECT_FALSE(std::regex_search(markup, std::regex("(src|href)=\"[^d]")));  // href="data:," alone
  EXPECT_NE(markup.find("default-src 'none'"), std::string::npos);
}

TEST(PageTest, LongSeriesAreThinnedToTheirExtremes) {
  RunRecord run;
  run.name = "long";
  for (int64_t step = 1; step <= 100000; ++step)
    run.losses.push_back(
        {step - 1, step, step == 77777 ? 100.0 : 2 + 1e-6 * static_cast<double>(step), 1});
  const std::vector<RunRecord> runs = {run};
  const std::string page = runs_page(runs, {}, {}, "long");
  EXPECT_LT(page.size(), 300000U);
  const nlohmann::json loss = data_of(page).at("runs")[0].at("loss");
  const auto x = loss.at("x").get<std::vector<double>>(),
             y = loss.at("y").get<std::vector<double>>();
  EXPECT_LE(x.size(), 6000U);
  EXPECT_TRUE(std::is_sorted(x.begin(), x.end()));
  const auto spike = std::max_element(y.begin(), y.end());
  EXPECT_EQ(*spike, 100);
  EXPECT_EQ(x[static_cast<size_t>(spike - y.begin())], 77777);
  EXPECT_EQ(x.front(), 1);
  EXPECT_EQ(x.back(), 100000);
}

}  // namespace
}  // namespace deltatrain::report
