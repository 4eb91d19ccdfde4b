#include "report/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "support/test_files.h"

namespace deltatrain::report {
namespace {

class ChromeTraceTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  nlohmann::json merged(const std::string& folder) const {
    return nlohmann::json::parse(
        merge_chrome_traces(find_chrome_traces({(folder_ / folder).string()}, "")));
  }
  test::TemporaryFolder folder_;
};

TEST_F(ChromeTraceTest, RanksKeepTheirOwnProcesses) {
  write("run/profile/rank0.trace.json",
        R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 1, "ts": 5, "dur": 1}]})");
  write("run/profile/rank10.trace.json",
        R"([{"ph": "X", "name": "c", "pid": 0, "tid": 1, "ts": 7, "dur": 1}])");
  write("run/profile/rank2.trace.json", R"({"traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "X", "name": "b", "pid": 0, "tid": 1, "ts": 6, "dur": 1},
    {"ph": "s", "name": "flow", "id": 9, "pid": 0, "tid": 1, "ts": 6},
    {"ph": "X", "name": "d", "pid": "Spans", "tid": 1, "ts": 6.5, "dur": 1}]})");
  write("run/profile/step.md", "no trace");
  const nlohmann::json trace = merged("run");
  std::map<std::string, int64_t> process;
  std::map<int64_t, std::string> name;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") process[event.at("name")] = event.at("pid");
    if (event.at("name") == "process_name") name[event.at("pid")] = event.at("args").at("name");
    if (event.at("ph") == "s") {
      EXPECT_EQ(event.at("id"), "rank2:9");
    }
  }
  // Rank 2 comes before rank 10.
  EXPECT_EQ(process, (std::map<std::string, int64_t>{{"a", 0}, {"b", 1}, {"d", 2}, {"c", 3}}));
  EXPECT_EQ(name, (std::map<int64_t, std::string>{
                      {0, "rank0"}, {1, "rank2: python"}, {2, "rank2: Spans"}, {3, "rank10"}}));
}

TEST_F(ChromeTraceTest, WhatIsNoTraceIsRefusedByName) {
  write("bad/x.json", "{\"traceEvents\": 3}");
  EXPECT_THROW(merged("bad"), FormatError);
  write("cut/x.json", "{\"traceEvents\": [{\"ph\"");
  try {
    merged("cut");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr(
                    "x.json: Chrome trace: expected JSON with an array traceEvents, got no JSON"));
  }
  write("none/readme.txt", "");
  EXPECT_THROW(merged("none"), FormatError);
}

}  // namespace
}  // namespace deltatrain::report
