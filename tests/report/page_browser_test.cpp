// The page in a real browser, at the widths of a phone and of a desktop: skipped where there is none.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/page.h"
#include "support/test_files.h"

namespace deltatrain::report {
namespace {

std::string find_browser() {
  for (const char* const name : {"chromium", "chromium-browser", "google-chrome"}) {
    const std::string found = std::string("command -v ") + name + " >/dev/null 2>&1";
    if (std::system(found.c_str()) == 0) return name;
  }
  return "";
}

// Looks at the page as it is laid out, and tells the page around it what it finds.
const char* const kLook = R"(<script>
const problems = [];
addEventListener('error', e => problems.push('script: ' + e.message));
addEventListener('securitypolicyviolation', e => problems.push('refused: ' + e.blockedURI));
setTimeout(() => {
  const root = document.documentElement, found = {width: innerWidth, charts: [], problems};
  if (root.scrollWidth > innerWidth) problems.push(`wider than the window: ${root.scrollWidth}`);
  const overlap = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  for (const figure of document.querySelectorAll('figure')) {
    if (figure.hidden) continue;
    const frame = figure.querySelector('svg').getBoundingClientRect(), boxes = [];
    for (const text of figure.querySelectorAll('svg text')) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
        problems.push(`text outside of its chart: ${text.textContent}`);
      for (const other of boxes) if (overlap(box, other)) problems.push(`texts on each other: ${text.textContent}`);
      boxes.push(box);
    }
    found.charts.push({title: figure.querySelector('figcaption').textContent.trim(), labels: boxes.length,
                       curves: figure.querySelectorAll('svg g path').length});
  }
  const blocks = [...document.querySelectorAll('h1, h2, #state, .card, #controls, #legend button, figure, .scroll, .sample, #notes li')]
    .filter(e => e.offsetParent).map(e => ({e, box: e.getBoundingClientRect()}));
  for (let i = 0; i < blocks.length; ++i) for (let k = 0; k < i; ++k) {
    const a = blocks[i], b = blocks[k];
    if (!a.e.contains(b.e) && !b.e.contains(a.e) && overlap(a.box, b.box))
      problems.push(`on each other: ${a.e.textContent.slice(0, 40)} and ${b.e.textContent.slice(0, 40)}`);
  }
  const size = e => parseFloat(getComputedStyle(e).fontSize);
  found.smallest = Math.min(...[...document.querySelectorAll('body *')].filter(e => e.offsetParent || e.ownerSVGElement)
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(size));
  // The pointer in the middle of the loss chart: values of the step there.
  const svg = document.querySelector('figure svg'), box = svg.getBoundingClientRect();
  const chart = charts[0], x = box.left + chart.toX(1001);
  svg.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: box.top + 50, bubbles: true}));
  const tip = document.querySelector('figure .tip');
  found.tip = tip.hidden ? '' : [...tip.children].map(e => e.textContent).join('; ');
  const tipBox = tip.getBoundingClientRect();
  if (tipBox.left < 0 || tipBox.right > innerWidth) problems.push('values outside of the window');
  found.text = document.body.innerText;
  parent.postMessage(JSON.stringify(found), '*');
}, 300);
</script>)";

std::string unescaped(std::string text) {
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"&quot;", "\""},
                                 {"&lt;", "<"},
                                 {"&gt;", ">"},
                                 {"&nbsp;", "\u00a0"},
                                 {"&amp;", "&"}}) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  }
  return text;
}

nlohmann::json look_at(const std::string& browser, std::string page, int width) {
  const test::TemporaryFolder folder;
  page.insert(page.find("<script>"), kLook);
  std::ofstream(folder / "page.html") << page;
  // A frame, since windows have a least width that is larger than a phone's.
  std::ofstream(folder / "frame.html")
      << "<!DOCTYPE html><body><iframe src='page.html' style='border: 0; width: " << width
      << "px; height: 900px'></iframe><script>addEventListener('message', e => "
         "document.body.dataset.found = e.data)</script>";
  const std::string command =
      "timeout 120 " + browser + " --headless --no-sandbox --disable-gpu --hide-scrollbars" +
      " --user-data-dir=" + (folder / "profile").string() +
      " --virtual-time-budget=3000 --window-size=1400" + ",900 --dump-dom file://" +
      (folder / "frame.html").string() + " 2>/dev/null";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string dom;
  char buffer[65536];
  for (size_t n = std::fread(buffer, 1, sizeof buffer, pipe); n > 0;
       n = std::fread(buffer, 1, sizeof buffer, pipe))
    dom.append(buffer, n);
  ::pclose(pipe);
  const std::string begin = "data-found=\"";
  const size_t at = dom.find(begin);
  if (at == std::string::npos) return {};
  const size_t from = at + begin.size();
  return nlohmann::json::parse(unescaped(dom.substr(from, dom.find('"', from) - from)));
}

RunRecord full_run(const std::string& name, double offset) {
  RunRecord run;
  run.name = name;
  run.total_steps = 4768;
  for (int64_t step = 1; step <= 2001; ++step) {
    const double wiggle = 0.02 * std::sin(static_cast<double>(step));
    const double loss =
        step == 1001 ? 3.4375 + offset
                     : 3.3 + 8.6 * std::exp(-static_cast<double>(step) / 180) + wiggle + offset;
    run.losses.push_back({step - 1, step, loss, 1});
    run.learning_rate.push_back({step, 2e-4 * std::min(1.0, static_cast<double>(step) / 200)});
    run.gradient_norm.push_back({step, 0.5 + wiggle});
    run.step_seconds.push_back({step, 1.43 + wiggle});
    run.tokens_per_second.push_back({step, 183213 + 100 * wiggle});
    run.utilization.push_back({step, 0.345});
    run.power_watts.push_back({step, 650});
    run.clock_mhz.push_back({step, 1980});
    run.device_bytes.push_back({step, 6e10});
    for (const char* const part : {"data", "forward", "loss head", "backward", "optimizer"})
      run.part_seconds[part].push_back({step, 0.28});
  }
  run.validation = {{500, 3.9}, {1000, 3.6}, {2001, 3.4}};
  run.events = {{700, RunEventKind::kNonFinite}, {1500, RunEventKind::kSpike}};
  run.samples = {{2001, "The kernel", " is a driver, " + std::string(200, 'x') + " </script>"}};
  run.notes = {
      "a note that is long enough to need a second line on a phone, and maybe a third one too"};
  return run;
}

class PageBrowserTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    browser_ = find_browser();
    if (browser_.empty()) GTEST_SKIP() << "no Chromium here (Debian: chromium)";
  }
  std::string browser_;
};

TEST_P(PageBrowserTest, TwoRunsAreLegible) {
  const std::vector<RunRecord> runs = {
      full_run("fla_gated_deltanet_300M_pure_10B_tokens_seed_42", 0), full_run("primus", 0.01)};
  const std::vector<PairComparison> pairs = {compare_runs(runs[0], runs[1], {})};
  const nlohmann::json found =
      look_at(browser_, runs_page(runs, pairs, {}, "Comparison of runs"), GetParam());
  ASSERT_FALSE(found.is_null()) << "the page did not come up";
  EXPECT_EQ(found.at("width"), GetParam());
  EXPECT_EQ(found.at("problems"), nlohmann::json::array());
  EXPECT_GE(found.at("smallest"), 12);
  std::vector<std::string> titles;
  for (const auto& chart : found.at("charts")) {
    titles.push_back(chart.at("title"));
    EXPECT_GE(chart.at("curves"), 1) << titles.back();
    EXPECT_GE(chart.at("labels"), 4) << titles.back();
  }
  EXPECT_EQ(titles.size(), 12U) << nlohmann::json(titles);
  EXPECT_THAT(titles[1], testing::StartsWith("Difference over equal windows"));
  const std::string tip = found.at("tip");
  EXPECT_THAT(tip,
              testing::StartsWith(
                  "step 1,001; fla_gated_deltanet_300M_pure_10B_tokens_seed_42: 3.4375 (mean 3.3"));
  EXPECT_THAT(tip, testing::HasSubstr("; primus: 3.4475 (mean 3.3"));
  const std::string text = found.at("text");
  for (const char* const part : {"first crossover, equal windows", "Samples of text",
                                 "The kernel is a driver", "+0.29", "Notes"})
    EXPECT_THAT(text, testing::HasSubstr(part));
}

TEST_P(PageBrowserTest, OneRunIsLegible) {
  const std::vector<RunRecord> runs = {full_run("a", 0)};
  const nlohmann::json found = look_at(browser_, runs_page(runs, {}, {}, "a"), GetParam());
  ASSERT_FALSE(found.is_null()) << "the page did not come up";
  EXPECT_EQ(found.at("problems"), nlohmann::json::array());
  EXPECT_GE(found.at("charts").size(), 10U);
  const std::string text = found.at("text");
  for (const char* const part :
       {"2,001 of 4,768", "183,213", "34.5 %", "650 W", "55.88 GiB", "Time by part"})
    EXPECT_THAT(text, testing::HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(Widths, PageBrowserTest, testing::Values(375, 1280),
                         [](const auto& test) { return test.param == 375 ? "Phone" : "Desktop"; });

}  // namespace
}  // namespace deltatrain::report
