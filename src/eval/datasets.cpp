#include "eval/datasets.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "formats/table_rows.h"
#include "formats/text_column.h"  // reads_parquet
#include "prepare/byte_stream.h"
#include "text/utf8.h"

namespace deltatrain::eval {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtensions[] = {".jsonl", ".jsonl.zst", ".jsonl.gz", ".json",
                                            ".parquet"};
constexpr int64_t kMaxFileBytes = int64_t{4} << 30;
constexpr size_t kMaxLineBytes = size_t{1} << 28;

// Names that a file of `split` may have in the repository, folders included, without extension; "*"
// stands for numbered parts. The repository's own name comes first.
std::vector<std::string> stems(const Task& task, const std::string& split, bool is_own_folder) {
  std::vector<std::string> result;
  const auto in = [&](const std::string& folder) {
    result.insert(result.end(), {folder + split + "-*", folder + split, folder + split + "/0000"});
  };
  if (task.form == TaskForm::kPiqa) result.push_back("piqa_" + split);
  if (task.form == TaskForm::kHellaswag) in("data/");
  if (!task.config.empty()) in(task.config + "/");
  if (task.form == TaskForm::kRace) result.push_back("race_high_" + split);
  if (task.form == TaskForm::kLambada)
    result.insert(result.end(), {"data/lambada_" + split, "data/lambada_" + split + "_en"});
  // Without its configuration a file may be of another one, but for data sets that have one and
  // folders of the task's.
  if (task.config.empty() || is_own_folder || task.form == TaskForm::kLambada) {
    in("");
    in("default/");
  }
  return result;
}

// Parts NAME-00000-of-00003.EXT, ... all of them or none.
std::vector<fs::path> find_parts(const fs::path& folder, const std::string& prefix,
                                 std::string_view extension) {
  std::vector<fs::path> parts;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    constexpr size_t kNumbers = 14;  // 00000-of-00001
    if (name.size() == prefix.size() + kNumbers + extension.size() && name.starts_with(prefix) &&
        name.ends_with(extension) && name.substr(prefix.size() + 5, 4) == "-of-")
      parts.push_back(it->path());
  }
  std::sort(parts.begin(), parts.end());
  if (parts.empty()) return parts;
  const std::string last = parts.back().filename().string();
  const std::string count = last.substr(prefix.size() + 9, 5);
  if (std::to_string(parts.size()) !=
      count.substr(std::min(count.find_first_not_of('0'), count.size() - 1)))
    throw ConfigError(error_text(folder.string(), prefix + "*" + std::string(extension),
                                 "all " + count + " parts", std::to_string(parts.size())));
  return parts;
}

std::vector<fs::path> find_stem(const fs::path& root, const std::string& stem,
                                std::string_view extension) {
  if (stem.ends_with('*')) {
    const fs::path path = root / stem.substr(0, stem.size() - 1);
    return find_parts(path.parent_path(), path.filename().string(), extension);
  }
  fs::path path = root / (stem + std::string(extension));
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  return {path};
}

void read_lines(const fs::path& path, Split& split) {
  const auto stream = prepare::open_byte_stream(path, prepare::compression_of(path));
  std::string buffer;
  std::vector<char> block(size_t{1} << 20);
  int64_t line = 0, total = 0;
  const auto take = [&](std::string_view text) {
    ++line;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == std::string_view::npos) return;
    const std::string where = path.string() + ":" + std::to_string(line);
    Json row = Json::parse(text, nullptr, false);
    if (row.is_discarded() || !row.is_object())
      throw FormatError(error_text(where, "row", "a JSON object on one line",
                                   row.is_discarded() ? "broken JSON" : row.type_name()));
    split.documents.push_back(std::move(row));
  };
  while (const size_t count = stream->read(block.data(), block.size())) {
    total += static_cast<int64_t>(count);
    buffer.append(block.data(), count);
    size_t begin = 0;
    for (size_t end; (end = buffer.find('\n', begin)) != std::string::npos; begin = end + 1)
      take(std::string_view(buffer).substr(begin, end - begin));
    buffer.erase(0, begin);
    if (buffer.size() > kMaxLineBytes || total > kMaxFileBytes)
      throw FormatError(error_text(path.string() + ":" + std::to_string(line + 1), "size",
                                   "lines up to 256 MiB, files up to 4 GiB", "more"));
  }
  if (!buffer.empty()) take(buffer);
}

// Every column that the task needs is there, in a form that rows can hold.
void check_columns(const fs::path& path, const std::vector<formats::TableRows::Column>& columns,
                   const Task& task) {
  for (const std::string& name : columns_of(task.form)) {
    const auto found = std::ranges::find(columns, name, &formats::TableRows::Column::name);
    if (found == columns.end()) {
      std::string have;
      for (const auto& column : columns) have += (have.empty() ? "only " : ", ") + column.name;
      throw FormatError(
          error_text(path.string(), "column " + name, "this column", have.empty() ? "none" : have));
    }
    if (!found->is_read)
      throw FormatError(error_text(path.string(), "column " + name,
                                   "texts, numbers, or lists or structs of them", found->type));
  }
}

void read_table(const fs::path& path, const Task& task, Split& split) {
  const auto rows = formats::open_parquet_rows(path);
  check_columns(path, rows->columns(), task);
  int64_t bytes = 0;
  for (std::string row; rows->next(row);) {
    bytes += static_cast<int64_t>(row.size());
    if (bytes > kMaxFileBytes)
      throw FormatError(error_text(path.string(), "size", "rows of 4 GiB of text", "more"));
    split.documents.push_back(Json::parse(row));
  }
}

std::string digest_of(const fs::path& path) {
  const MappedFile file(path);
  Sha256 digest;
  digest.update(file.bytes().data(), file.bytes().size());
  return digest.hex();
}

}  // namespace

SplitFiles find_split(const fs::path& data, const Task& task, const std::string& split) {
  SplitFiles result;
  const size_t slash = task.dataset.find('/');
  std::vector<std::string> roots = {task.dataset};
  if (slash != std::string::npos) roots.push_back(task.dataset.substr(slash + 1));
  if (task.name != task.dataset) roots.push_back(task.name);
  result.wanted = (data / task.dataset / stems(task, split, false).front()).string();
  if (result.wanted.ends_with('*'))
    result.wanted.replace(result.wanted.size() - 1, 1, "00000-of-00001");
  for (const std::string& root : roots) {
    for (const std::string& stem : stems(task, split, root == task.name)) {
      for (const std::string_view extension : kExtensions) {
        result.found = find_stem(data / root, stem, extension);
        if (!result.found.empty()) return result;
      }
    }
  }
  return result;
}

void check_data(const fs::path& data, const std::vector<Task>& tasks, bool with_fewshot) {
  std::error_code error;
  if (!fs::is_directory(data, error))
    throw ConfigError(error_text("", "--data", "a folder with data sets", data.string()));
  std::vector<std::string> missing;
  std::set<std::string> datasets;
  for (const Task& task : tasks) {
    std::vector<std::string> splits = {task.scored_split};
    if (with_fewshot && !task.fewshot_split.empty() && task.fewshot_split != task.scored_split)
      splits.push_back(task.fewshot_split);
    for (const std::string& split : splits) {
      const SplitFiles files = find_split(data, task, split);
      if (!files.found.empty()) continue;
      missing.push_back(files.wanted + ".parquet or .jsonl, or " +
                        (data / task.name / split).string() + ".parquet or .jsonl");
      datasets.insert(task.dataset);
    }
  }
  if (missing.empty()) return;
  std::string text, names;
  for (size_t i = 0; i < std::min<size_t>(missing.size(), 4); ++i)
    text += (i == 0 ? "" : "; ") + missing[i];
  if (missing.size() > 4)
    text += "; and " + std::to_string(missing.size() - 4) + " more (eval --list --data shows all)";
  for (const std::string& name : datasets) names += (names.empty() ? "" : ", ") + name;
  throw ConfigError("--data: not there: " + text +
                    "; fetch the files of that name of the data set" +
                    (datasets.size() > 1 ? "s " : " ") + names + " and put them there" +
                    (formats::reads_parquet()
                         ? ""
                         : " as .jsonl: this program was built without Arrow C++, for Parquet"));
}

Split read_split(const fs::path& data, const Task& task, const std::string& split) {
  const SplitFiles files = find_split(data, task, split);
  if (files.found.empty()) check_data(data, {task}, true);
  Split result;
  result.where = files.found.empty() ? files.wanted : files.found.front().string();
  for (const fs::path& path : files.found) {
    if (path.extension() == ".parquet") {
      read_table(path, task, result);
    } else {
      read_lines(path, result);
    }
    result.digests[fs::relative(path, data).string()] = digest_of(path);
  }
  if (result.documents.empty())
    throw FormatError(error_text(result.where, "rows", "one or more", "none"));
  return result;
}

}  // namespace deltatrain::eval
