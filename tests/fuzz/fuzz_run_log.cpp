// Logs of runs: read, compared with themselves, drawn, and put into a page.
#include "fuzz/hostile_file.h"
#include "report/comparison_text.h"
#include "report/page.h"
#include "report/run_charts.h"
#include "report/run_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile file;
  using namespace deltatrain::report;
  return deltatrain::fuzz::refuse_or_accept([&] {
    const RunReaderOptions reading{
        .trainer_divisor = 8, .logging_steps = 10, .tokens_per_step_and_device = 1};
    const std::vector<RunRecord> runs(2, read_run(file.fill(data, size), reading));
    const ComparisonOptions options{.iterations = {}, .min_window = 1};
    const std::vector<PairComparison> pairs = {compare_runs(runs[0], runs[1], options)};
    comparison_markdown(pairs, options);
    comparison_csv(pairs);
    comparison_json(pairs, options);
    draw_runs(runs, pairs, PictureKind::kSvg);
    runs_page(runs, pairs, options, "fuzz");
  });
}
