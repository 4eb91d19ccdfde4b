// The tasks of the evaluation: which data set each reads, how a document becomes requests, and
// which metrics it has.
//
// Equal to lm-evaluation-harness 0.4.13 for the names it has; `cloze` is this program's own, for
// texts of one's own. docs/evaluation.md lists the columns.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::eval {

using Json = nlohmann::ordered_json;

enum class TaskForm : uint8_t {
  kArc,
  kHellaswag,
  kOpenbookqa,
  kPiqa,
  kWinogrande,
  kMmlu,
  kRace,
  kLambada,
  kWikitext,
  kCloze
};

// Where the examples of a few-shot prompt come from.
enum class FewshotPool : uint8_t {
  kNone,          // the task has no examples
  kTrain,         // the train split, k at random
  kTrainWithout,  // the train split, k + 1 at random, without the document itself
  kScored,        // the scored split, k at random: a document may meet itself
  kFirstOfDev     // the dev split, its first k rows
};

struct Metric {
  std::string_view name;
  bool higher_is_better = true;
};

struct Task {
  std::string name;
  std::string alias;  // in tables
  TaskForm form;
  std::string dataset;  // "allenai/ai2_arc"
  std::string config;   // "ARC-Easy"; "" where the data set has one only
  std::string scored_split;
  FewshotPool fewshot = FewshotPool::kNone;
  std::string fewshot_split;  // "" for kNone
  std::vector<Metric> metrics;
  double version = 1;
  int64_t num_documents = 0;  // of the scored split as published; 0: any number
  double chance = 0;          // accuracy of guessing; 0: none
  std::string description;    // in front of every context
  std::string group;          // "" or the group it counts in
};

struct Group {
  std::string name;
  std::string alias;
  std::string parent;
  std::string version;
};

const std::vector<Task>& all_tasks();
// Children before parents.
const std::vector<Group>& all_groups();

// The tasks that names, groups ("mmlu", "mmlu_stem"), the tag "ai2_arc" and patterns with * and ?
// mean, in the order given. ConfigError for an unknown name, naming the nearest, and for a task
// reached twice.
std::vector<Task> find_tasks(std::span<const std::string> names);

// The columns that make_question reads of a document.
std::vector<std::string> columns_of(TaskForm form);

// A document as a question.
struct Question {
  std::vector<std::string> contexts;       // one for all choices, or one for each (winogrande)
  std::vector<std::string> continuations;  // one for each choice, or one for all (winogrande)
  std::vector<int64_t>
      choice_lengths;  // characters without the blank before; empty where nothing is normalised
  int64_t gold = 0;
  std::string target;          // what sample files call it
  std::string fewshot_answer;  // what follows context[gold] and a blank in an example
  // Perplexity tasks: words and bytes of the text as it stands in the document.
  int64_t num_words = 0, num_bytes = 0;

  int64_t num_requests() const;
  const std::string& context(int64_t i) const {
    return contexts[contexts.size() == 1 ? 0 : static_cast<size_t>(i)];
  }
  const std::string& continuation(int64_t i) const {
    return continuations[continuations.size() == 1 ? 0 : static_cast<size_t>(i)];
  }
};

// Adds the derived fields that sample files show (hellaswag). `where` names file and row in the
// FormatError for a column that is missing or of another type, or a value that cannot be.
// `race_version`: 2 or 3.
Question make_question(const Task& task, Json& document, const std::string& where,
                       int race_version = 3);

}  // namespace deltatrain::eval
