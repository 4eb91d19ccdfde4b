// The examples in front of a question, drawn as the harness draws them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/python_random.h"
#include "eval/tasks.h"

namespace deltatrain::eval {

// One per task: documents have to come in order, each once, since every draw moves the random
// numbers on.
class FewshotSampler {
 public:
  // `pool`: all documents of the task's few-shot split. ConfigError when there are fewer than
  // needed, or the task takes no examples.
  FewshotSampler(const Task& task, std::vector<Json> pool, std::string where, int64_t num_fewshot,
                 uint64_t seed, int race_version = 3);

  // What stands between description and question. `document` as read, without derived fields.
  std::string next_prefix(const Json& document);

 private:
  Task task_;
  std::vector<Json> pool_;
  std::string where_;
  int64_t num_fewshot_;
  int race_version_;
  PythonRandom random_;
};

}  // namespace deltatrain::eval
