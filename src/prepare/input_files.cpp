#include "prepare/input_files.h"

#include <glob.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "data/row_files.h"

namespace deltatrain::prepare {

namespace {

namespace fs = std::filesystem;

std::optional<FileFormat> format_by_word(const std::string& word) {
  for (const FileFormat format :
       {FileFormat::kText, FileFormat::kJsonLines, FileFormat::kArrow, FileFormat::kParquet}) {
    if (word == file_format_name(format)) return format;
  }
  return std::nullopt;
}

// Whether a file of a folder is no input although its name says so: what `datasets` writes beside
// its tables, and tables that an earlier save left in the folder.
class SavedDataSets {
 public:
  bool leaves_out(const fs::path& path) {
    const std::string name = path.filename().string();
    if (name == "dataset_dict.json") return true;
    const std::set<std::string>* tables = tables_of(path.parent_path());
    if (tables == nullptr) return false;
    if (path.extension() == ".arrow") return !tables->contains(path.string());
    return name == "state.json" || name == "dataset_info.json";
  }

 private:
  // The tables that the folder's state.json names; null where it has none or no tables at all.
  const std::set<std::string>* tables_of(const fs::path& folder) {
    auto found = folders_.find(folder);
    if (found == folders_.end()) {
      std::set<std::string> names;
      const auto is_table_file = [](const fs::directory_entry& entry) {
        return entry.path().extension() == ".arrow";
      };
      if (fs::exists(folder / "state.json") &&
          std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), is_table_file)) {
        const std::vector<std::string> files = data::arrow_files_of(folder.string());
        names.insert(files.begin(), files.end());
      }
      found = folders_.emplace(folder, std::move(names)).first;
    }
    return found->second.empty() ? nullptr : &found->second;
  }

  std::map<fs::path, std::set<std::string>> folders_;
};

std::optional<FileFormat> format_by_name(const fs::path& path, const std::string& format) {
  if (format != "auto") return format_by_word(format);
  fs::path name = path.filename();
  if (name.extension() == ".arrow") return FileFormat::kArrow;
  if (name.extension() == ".parquet") return FileFormat::kParquet;
  if (compression_of(name) != Compression::kNone) name = name.stem();
  const std::string extension = name.extension().string();
  if (extension == ".txt") return FileFormat::kText;
  if (extension == ".jsonl" || extension == ".json") return FileFormat::kJsonLines;
  return std::nullopt;
}

class Finder {
 public:
  explicit Finder(const std::string& format) : format_(format) {}

  void add(const std::string& input) {
    if (fs::exists(input)) {
      add_path(input, input);
      return;
    }
    if (input.find_first_of("*?[") == std::string::npos) {
      throw ConfigError(error_text("--input " + input, "", "a file, folder or glob",
                                   "a name that does not exist"));
    }
    glob_t matches{};
    const int status = ::glob(input.c_str(), GLOB_NOSORT, nullptr, &matches);
    std::vector<std::string> paths;
    if (status == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    ::globfree(&matches);
    if (paths.empty())
      throw ConfigError(error_text("--input " + input, "", "matching files", "none"));
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) add_path(path, input);
  }

  InputFiles take() { return std::move(found_); }

 private:
  void add_path(const std::string& path, const std::string& input) {
    if (fs::is_directory(path)) {
      add_folder(path, input);
    } else if (!add_file(path)) {
      throw ConfigError(error_text("--input " + path, "",
                                   ".txt, .jsonl or .json, plain or with .gz or .zst, .arrow or "
                                   ".parquet (or --format)",
                                   "'" + fs::path(path).filename().string() + "'"));
    }
  }

  void add_folder(const std::string& folder, const std::string& input) {
    std::vector<std::string> paths;
    fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink);
    for (; it != fs::recursive_directory_iterator(); ++it) {
      const bool hidden = it->path().filename().string().starts_with('.');
      if (it->is_directory()) {
        if (hidden) it.disable_recursion_pending();
      } else if (!hidden && it->is_regular_file()) {
        paths.push_back(it->path().string());
      }
    }
    std::sort(paths.begin(), paths.end());
    const size_t before = found_.files.size();
    for (const std::string& path : paths) {
      if (data_sets_.leaves_out(path) || !add_file(path)) ++found_.num_ignored;
    }
    if (found_.files.size() == before) {
      throw ConfigError(
          error_text("--input " + input, "", "a folder with .txt, .jsonl, .arrow or .parquet files",
                     folder + " with " + std::to_string(paths.size()) + " other files"));
    }
  }

  bool add_file(const std::string& path) {
    const std::optional<FileFormat> format = format_by_name(path, format_);
    if (!format.has_value()) return false;
    if (!seen_.insert(fs::weakly_canonical(path).string()).second) {
      throw ConfigError(error_text("--input " + path, "", "each file once",
                                   "a file that an earlier input named"));
    }
    const Compression compression = is_table(*format) ? Compression::kNone : compression_of(path);
    found_.files.push_back({path, *format, compression, static_cast<int64_t>(fs::file_size(path))});
    return true;
  }

  const std::string format_;
  SavedDataSets data_sets_;
  std::set<std::string> seen_;
  InputFiles found_;
};

}  // namespace

std::string file_format_name(FileFormat format) {
  switch (format) {
    case FileFormat::kText:
      return "txt";
    case FileFormat::kJsonLines:
      return "jsonl";
    case FileFormat::kArrow:
      return "arrow";
    case FileFormat::kParquet:
      return "parquet";
  }
  return {};
}

InputFiles find_input_files(const std::vector<std::string>& inputs, const std::string& format) {
  if (format != "auto" && !format_by_word(format).has_value()) {
    throw ConfigError(
        error_text("--format", "", "auto, txt, jsonl, arrow or parquet", "'" + format + "'"));
  }
  Finder finder(format);
  try {
    for (const std::string& input : inputs) finder.add(input);
  } catch (const fs::filesystem_error& error) {
    throw FileError(error.path1().string() + ": cannot be read: " + error.code().message(),
                    ExitCode::kBadInput);
  }
  return finder.take();
}

}  // namespace deltatrain::prepare
