// Data sets as files on this machine, laid out as their repositories are.
//
//   DIR/allenai/ai2_arc/ARC-Easy/test-00000-of-00001.parquet      (or several parts), as fetched
//   DIR/allenai/ai2_arc/ARC-Easy/test.jsonl                       one row an object, also .gz, .zst
//   DIR/arc_easy/test.parquet, DIR/arc_easy/test.jsonl            under the task's own name
//
// Where rows lie there in several forms, JSON lines are read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "eval/tasks.h"

namespace deltatrain::eval {

// The files of one split, in the order of their rows.
struct SplitFiles {
  std::vector<std::filesystem::path> found;  // empty: not there
  std::string wanted;                        // where it is looked for first, for messages
};
SplitFiles find_split(const std::filesystem::path& data, const Task& task,
                      const std::string& split);

// ConfigError in one line that names the files to fetch and where to put them, when any split that
// the tasks need is not there.
void check_data(const std::filesystem::path& data, const std::vector<Task>& tasks,
                bool with_fewshot);

struct Split {
  std::vector<Json> documents;
  std::string where;                           // the first file, for messages
  std::map<std::string, std::string> digests;  // file -> SHA-256 of its bytes
};
// FormatError "FILE:LINE: ..." for what is no row, "FILE: ..." for a damaged Parquet file and one without a column that the
// task needs, or with one of a type that is none of JSON's. UnsupportedError for Parquet in a build without Arrow C++.
Split read_split(const std::filesystem::path& data, const Task& task, const std::string& split);

}  // namespace deltatrain::eval
