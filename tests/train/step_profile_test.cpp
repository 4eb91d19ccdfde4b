#include "train/step_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "backend/registry.h"

namespace deltatrain::train {
namespace {

// A device whose clock goes on by one second at each mark.
class CountingDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  MemoryResource& memory() override { return host_memory(); }
  void copy_to_device(void*, const void*, size_t) override {}
  void copy_to_host(void*, const void*, size_t) override {}
  void copy_on_device(void*, const void*, size_t) override {}
  void fill_zero(void*, size_t) override {}
  void synchronize() override {}
  int64_t free_memory_bytes() override { return 0; }
  const char* description() const override { return "counting"; }
  void mark() override { ++marks_; }
  std::vector<double> take_marks() override {
    std::vector<double> seconds;
    for (int i = 0; i < marks_; ++i) seconds.push_back(i);
    marks_ = 0;
    return seconds;
  }

 private:
  int marks_ = 0;
};

TEST(StepProfileTest, TimesPartsAndOps) {
  CountingDevice device;
  const ops::OpTable table;
  const Context context{&device, &table, nullptr, DType::kF32};
  StepProfile profile(context);
  EXPECT_EQ(profile.context().table->observer, &profile);
  profile.begin("before the start: not counted");
  profile.end("before the start: not counted");
  profile.start();                  // second 0
  profile.part("forward");          // 1
  profile.begin("linear_forward");  // 2
  profile.end("linear_forward");    // 3
  profile.part("backward");         // 4
  profile.begin("linear_forward");  // 5
  profile.end("linear_forward");    // 6
  profile.begin("adamw");           // 7
  profile.end("adamw");             // 8
  profile.finish();                 // 9
  profile.begin("after the end: not counted");
  EXPECT_EQ(profile.total_seconds(), 9);
  ASSERT_EQ(profile.spans().size(), 9U);
  EXPECT_EQ(profile.tables(),
            "| part | ms | share |\n|---|---|---|\n"
            "| data | 1000.000 | 11.1 % |\n"
            "| forward | 3000.000 | 33.3 % |\n"
            "| backward | 5000.000 | 55.6 % |\n"
            "| step | 9000.000 | 100 % |\n\n"
            "| op | calls | ms | share |\n|---|---|---|---|\n"
            "| between ops | 6 | 6000.000 | 66.7 % |\n"
            "| linear_forward | 2 | 2000.000 | 22.2 % |\n"
            "| adamw | 1 | 1000.000 | 11.1 % |\n");

  const auto trace = nlohmann::json::parse(profile.chrome_trace(3));
  std::vector<std::string> names;
  for (const auto& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") != "X") continue;
    names.push_back(event.at("name"));
    if (event.at("name") == "adamw") {
      EXPECT_EQ(event.at("ts"), 7e6);
      EXPECT_EQ(event.at("dur"), 1e6);
    }
    if (event.at("name") == "backward") {
      EXPECT_EQ(event.at("ts"), 4e6);
      EXPECT_EQ(event.at("dur"), 5e6);
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"data", "forward", "backward", "linear_forward",
                                             "linear_forward", "adamw"}));

  // Of three ranks the middle one gave no trace.
  const auto joined =
      nlohmann::json::parse(join_traces({profile.chrome_trace(0), "", profile.chrome_trace(2)}));
  std::map<int, int> spans;
  std::vector<std::string> processes;
  for (const auto& event : joined.at("traceEvents")) {
    if (event.at("ph") == "X") ++spans[event.at("pid").get<int>()];
    if (event.at("name") == "process_name") processes.push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(spans, (std::map<int, int>{{0, 6}, {2, 6}}));
  EXPECT_EQ(processes, (std::vector<std::string>{"rank 0", "rank 2"}));
}

}  // namespace
}  // namespace deltatrain::train
