// Results as lm-evaluation-harness 0.4.13 writes them: results_STAMP.json, samples_TASK_STAMP.jsonl
// and the table.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "eval/evaluation.h"

namespace deltatrain::eval {

// What the result file says of the run beside the numbers.
struct RunDescription {
  std::string version;  // of this program
  std::string model;    // as given; names the folder
  std::string device, dtype;
  int64_t num_parameters = 0;
  std::string batch_size;  // as given: "auto" or a number
  int64_t chosen_batch_size = 0;
  ScorePrecision scoring = ScorePrecision::kF32;
  std::string special_tokens_rule;
  std::string add_bos;  // as given
  int32_t eos_id = -1, bos_id = -1, pad_id = -1;
  std::string eos_text, bos_text, pad_text;
  double start_unix_seconds = 0;
  double total_seconds = 0;
  ScorerWork work;
};

Json results_json(const Evaluation& evaluation, const RunDescription& run);

// Markdown, with a second table of the groups where there are some.
std::string results_table(const Json& results);

// Local time with microseconds, such as 2026-11-29T12-44-10.408200.
std::string file_stamp();

struct ResultFiles {
  std::filesystem::path results;
  std::filesystem::path folder;
};
// OUT/MODEL/results_STAMP.json; for an OUT that ends in .json its stem takes the place of
// "results".
ResultFiles result_files(const std::filesystem::path& out, const std::string& model,
                         const std::string& stamp);

void write_results(const ResultFiles& files, const Json& results);
// One file per task, one line per document.
void write_samples(const ResultFiles& files, const Evaluation& evaluation,
                   const std::string& stamp);

}  // namespace deltatrain::eval
