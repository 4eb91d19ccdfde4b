// An evaluation from start to end: documents to requests, scores to metrics of tasks and groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "eval/metrics.h"
#include "eval/sample_hashes.h"
#include "eval/scorer.h"
#include "eval/tasks.h"
#include "text/tokenizer.h"

namespace deltatrain::eval {

// What decides which requests are made. Everything here can move a number.
struct EvaluationOptions {
  std::vector<Task> tasks;
  std::vector<std::string> groups;  // asked for by name; with a group come those in it
  std::filesystem::path data;
  int64_t num_fewshot = 0;
  uint64_t fewshot_seed = 1234;
  std::optional<double>
      limit;  // below 1: share of each task's documents, rounded up; else their number
  int64_t max_length = 2048;
  text::AddSpecialTokens special_tokens = text::AddSpecialTokens::kYes;
  int race_version = 3;
  int64_t bootstrap_iters = 100000;
};

struct Sample {
  int64_t doc_id = 0;
  Json* document = nullptr;  // in TaskRun::documents
  Question question;
  std::string prefix;  // description and examples, in front of every context
  SampleHashes hashes;
  size_t first_request = 0;    // into Evaluation::requests
  size_t num_requests = 0;     // rolling: windows
  std::vector<Score> scores;   // one per choice
  std::vector<double> values;  // per metric of the task
};

struct TaskRun {
  Task task;
  std::vector<Json> documents;
  std::map<std::string, std::string> files;  // with SHA-256
  int64_t num_original = 0;                  // rows of the split
  std::vector<Sample> samples;
  int64_t truncated_requests = 0;
  int64_t truncated_tokens = 0;
  std::vector<Estimate> metrics;  // as in task.metrics, once finished
  std::string hash;
};

struct GroupRun {
  Group group;
  Estimate acc;
  int64_t num_samples = 0;
  std::vector<std::string> children;
};

class Evaluation {
 public:
  // Reads all data and makes all requests. Throws as datasets.h, tasks.h and tokens.h say.
  Evaluation(const EvaluationOptions& options, const text::Tokenizer& tokenizer,
             Reporter& reporter);
  ~Evaluation();
  Evaluation(Evaluation&&) noexcept;

  const EvaluationOptions& options() const { return options_; }
  const std::vector<TokenRequest>& requests() const { return requests_; }
  // One score per request.
  void finish(const std::vector<Score>& scores);

  const std::vector<TaskRun>& tasks() const { return tasks_; }
  // Children before parents.
  const std::vector<GroupRun>& groups() const { return groups_; }

 private:
  void add_task(const Task& task, const text::Tokenizer& tokenizer);
  void add_requests(TaskRun& run, Sample& sample, const text::Tokenizer& tokenizer,
                    const std::string& where);
  void finish_task(TaskRun& run);
  void finish_groups();

  EvaluationOptions options_;
  std::vector<TokenRequest> requests_;
  std::vector<TaskRun> tasks_;
  std::vector<GroupRun> groups_;
};

}  // namespace deltatrain::eval
