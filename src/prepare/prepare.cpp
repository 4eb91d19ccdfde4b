#include "prepare/prepare.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "prepare/assemble.h"
#include "prepare/pipeline.h"
#include "prepare/plan.h"

namespace deltatrain::prepare {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const char* name_of(TextDocuments value) {
  return value == TextDocuments::kFile   ? "file"
         : value == TextDocuments::kLine ? "line"
                                         : "paragraph";
}
const char* name_of(OnInvalidUtf8 value) {
  return value == OnInvalidUtf8::kStop      ? "stop"
         : value == OnInvalidUtf8::kReplace ? "replace"
                                            : "skip";
}
const char* name_of(OnEmptyText value) { return value == OnEmptyText::kSkip ? "skip" : "keep"; }
const char* name_of(OnBadDocument value) { return value == OnBadDocument::kStop ? "stop" : "skip"; }

std::string sha256_of(const std::string& text) {
  Sha256 sha;
  sha.update(text.data(), text.size());
  return sha.hex();
}

void check_options(const PrepareOptions& options) {
  const auto require = [](bool holds, const char* what, const char* expected,
                          const std::string& got) {
    if (!holds) throw ConfigError(error_text("", what, expected, got));
  };
  require(!options.inputs.empty(), "--input", "at least one file, folder or glob", "none");
  require(!options.out.empty() && !options.out.ends_with('/'), "--out", "a prefix of files",
          "'" + options.out + "'");
  require(options.num_workers > 0, "--workers", "at least 1", std::to_string(options.num_workers));
  require(options.num_partitions > 0, "--partitions", "at least 1",
          std::to_string(options.num_partitions));
  require(options.valid_fraction >= 0 && options.valid_fraction < 1, "--valid-fraction",
          "a number from 0 to below 1", std::to_string(options.valid_fraction));
  require(options.num_partitions == 1 || options.valid_fraction == 0,
          "--partitions with --valid-fraction", "one of the two", "both");
  require(options.records.text_column.find('/') == std::string::npos &&
              !options.records.text_column.empty(),
          "--text-column", "a name without '/', since outputs are named after it",
          "'" + options.records.text_column + "'");
  require(options.records.max_document_bytes > 0, "--max-document-bytes", "at least 1",
          std::to_string(options.records.max_document_bytes));
  require(
      options.num_machines > 0 && options.machine >= 0 && options.machine < options.num_machines,
      "--shard", "i/n with i from 1 to n",
      std::to_string(options.machine + 1) + "/" + std::to_string(options.num_machines));
  if (options.layout == OutputLayout::kRows) {
    require(options.num_partitions == 1, "--layout fla with --partitions", "one of the two",
            "both");
    require(options.valid_fraction == 0, "--layout fla with --valid-fraction", "one of the two",
            "both");
    const auto positive = [&](int64_t value, const char* what) {
      require(value > 0, what, "at least 1", std::to_string(value));
    };
    positive(options.rows.seq_length, "--seq-length");
    positive(options.rows.map_batch_size, "--map-batch-size");
    positive(options.rows.map_processes, "--map-processes");
    // A record batch of 1000 rows has offsets of 32 bits.
    require(options.rows.seq_length <= 2'000'000, "--seq-length", "at most 2000000",
            std::to_string(options.rows.seq_length));
    require(options.rows.map_processes <= 99'999, "--map-processes", "at most 99999",
            std::to_string(options.rows.map_processes));
  }
  require(!options.merge || options.num_machines == 1, "--merge with --shard", "one of the two",
          "both");
}

// Everything that the outputs depend on.
Json settings_of(const PrepareOptions& options, const TextEncoder& encoder, const Plan& plan,
                 formats::TokenType type) {
  std::string fingerprints;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    const InputFile& file = plan.files[i];
    fingerprints +=
        file.path + " " + file_format_name(file.format) + " " + plan.fingerprints[i] + "\n";
  }
  Json settings{{"layout", options.layout == OutputLayout::kMegatron ? "megatron" : "fla"},
                {"tokenizer", encoder.description},
                {"tokenizer_digest", encoder.identity},
                {"vocab_size", encoder.vocab_size},
                {"eod_id", encoder.eod_id},
                {"element_type", formats::token_type_name(type)},
                {"text_column", options.records.text_column},
                {"txt_documents", name_of(options.records.text_documents)},
                {"invalid_utf8", name_of(options.records.on_invalid_utf8)},
                {"bad_documents", name_of(options.records.on_bad_document)},
                {"empty", name_of(options.records.on_empty_text)},
                {"max_document_bytes", options.records.max_document_bytes},
                {"partitions", options.num_partitions},
                {"valid_fraction", options.valid_fraction},
                {"shard_bytes", options.shard_bytes},
                {"input_files", plan.files.size()},
                {"input_bytes", plan.bytes},
                {"input_digest", sha256_of(fingerprints)}};
  if (options.layout == OutputLayout::kRows) {
    const RowLayout& rows = options.rows;
    settings["seq_length"] = rows.seq_length;
    settings["drop_tails"] = rows.drop_tails == DropTails::kPerBatch ? "batch" : "end";
    settings["map_batch_size"] = rows.map_batch_size;
    settings["map_processes"] = rows.map_processes;
    settings["shuffle_seed"] = rows.shuffle ? Json(rows.seed) : Json(nullptr);
  }
  return settings;
}

std::optional<Json> read_json(const std::string& path) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    return Json::parse(read_file(path));
  } catch (const Json::exception& error) {
    throw FormatError(error_text(path, "", "JSON as prepare writes it", error.what()));
  }
}

// The first setting of `got` that is not as in `want`, in words; empty when all are.
std::string difference(const Json& want, const Json& got) {
  for (const auto& [key, value] : want.items()) {
    const auto found = got.find(key);
    if (found == got.end()) return key + " " + value.dump() + " against none";
    if (*found != value) return key + " " + value.dump() + " against " + found->dump();
  }
  return {};
}

// The first setting that keeps finished parts of `got` from being used under `want`; empty when none
// does. A part's name says of which input it is. One that was finished while bad records stop the run
// holds none, so that any rule for them would have given the same.
std::string difference_for_parts(Json want, const Json& got) {
  for (const char* key : {"input_files", "input_bytes", "input_digest"}) want.erase(key);
  for (const char* key : {"bad_documents", "invalid_utf8"}) {
    if (got.value(key, "") == "stop") want.erase(key);
  }
  return difference(want, got);
}

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const TextEncoder& encoder, Reporter& reporter)
      : options_(options),
        encoder_(encoder),
        reporter_(reporter),
        type_(options.layout == OutputLayout::kRows
                  ? formats::TokenType::kI32
                  : formats::token_type_for_vocabulary(encoder.vocab_size)),
        layout_{options.out, options.records.text_column + "_document", options.num_partitions,
                options.valid_fraction},
        parts_(options.out + ".parts"),
        manifest_path_(options.out + ".manifest.json") {}

  PrepareResult run() {
    InputFiles inputs = find_input_files(options_.inputs, options_.format);
    if (inputs.num_ignored > 0) {
      reporter_.message("prepare", std::to_string(inputs.num_ignored) +
                                       " files of other kinds in the folders are left out");
    }
    for (const InputFile& file : inputs.files) {
      if (is_table(file.format)) check_table(file, options_.records);
    }
    plan_ = make_plan(std::move(inputs.files), options_.records, options_.shard_bytes);
    settings_ = settings_of(options_, encoder_, plan_, type_);
    if (options_.overwrite) remove_outputs();
    if (const std::optional<PrepareResult> finished = finished_run(); finished.has_value())
      return *finished;
    claim_parts();
    remove_leftovers();
    remove_stale_parts();
    if (!options_.merge) make_missing_parts();
    if (options_.num_machines > 1)
      return {.counts = count_parts(false), .outputs = {}, .already_there = false};
    return merge();
  }

 private:
  // Parts go by what they were made of, so that those of unchanged input are found again.
  std::string stem_of(int64_t shard) const {
    return parts_ + "/" + plan_.shards[static_cast<size_t>(shard)].identity;
  }

  // Of the token files; of rows, those that are there.
  std::vector<std::string> output_paths() const {
    if (options_.layout == OutputLayout::kRows) return row_files_in(options_.out);
    std::vector<std::string> paths;
    for (const std::string& prefix : layout_.prefixes()) {
      paths.push_back(formats::bin_path(prefix).string());
      paths.push_back(formats::idx_path(prefix).string());
    }
    return paths;
  }

  void remove_outputs() const {
    fs::remove(manifest_path_);
    for (const std::string& path : output_paths()) fs::remove(path);
    fs::remove_all(parts_);
  }

  // The result of a run with the same settings that had finished; an error when other outputs are
  // there.
  std::optional<PrepareResult> finished_run() const {
    const std::optional<Json> manifest = read_json(manifest_path_);
    if (manifest.has_value()) {
      const std::string differs =
          difference(settings_, manifest->value("settings", Json::object()));
      if (!differs.empty()) {
        throw ConfigError(error_text(
            manifest_path_, "", "no earlier output",
            "one of other settings (" + differs + "); give another --out or --overwrite"));
      }
      PrepareResult result;
      result.already_there = true;
      result.counts.documents = manifest->at("documents");
      result.counts.tokens = manifest->at("tokens");
      result.rows = manifest->value("rows", int64_t{0});
      result.dropped_tokens = manifest->value("dropped_tokens", int64_t{0});
      bool whole = true;
      for (const Json& output : manifest->at("outputs")) {
        for (const char* kind : {"bin", "idx", "file"}) {
          if (!output.contains(kind)) continue;
          const Json& file = output.at(kind);
          const fs::path path =
              fs::path(manifest_path_).parent_path() / file.at("file").get<std::string>();
          std::error_code missing;
          whole = whole && static_cast<int64_t>(fs::file_size(path, missing)) ==
                               file.at("bytes").get<int64_t>();
          result.outputs.push_back({path.string(), file.at("bytes"), file.at("sha256")});
        }
      }
      if (whole) {
        // Left by a run that was killed after its last file.
        remove_leftovers();
        if (options_.num_machines == 1) fs::remove_all(parts_);
        return result;
      }
      throw ConfigError(
          error_text(manifest_path_, "", "the outputs that it names",
                     "files missing or of another size; give --overwrite to make them again"));
    }
    if (fs::exists(parts_)) return std::nullopt;  // a run that stopped may have left outputs behind
    for (const std::string& path : output_paths()) {
      if (fs::exists(path)) {
        throw ConfigError(
            error_text(path, "", "no earlier output",
                       "a file without a manifest; give another --out or --overwrite"));
      }
    }
    return std::nullopt;
  }

  // Makes the folder of the parts, or takes on one that was made for the same settings.
  void claim_parts() const {
    const std::string path = parts_ + "/plan.json";
    const std::optional<Json> earlier = read_json(path);
    if (earlier.has_value()) {
      const std::string differs = difference_for_parts(settings_, *earlier);
      if (!differs.empty()) {
        throw ConfigError(
            error_text(path, "", "an unfinished run of these settings",
                       "one of others (" + differs + "); give another --out or --overwrite"));
      }
      if (*earlier != settings_) write_file_atomically(path, settings_.dump(1) + "\n");
      return;
    }
    if (options_.merge) {
      throw ConfigError(
          error_text("--merge", parts_, "the parts that --shard runs have made", "none"));
    }
    std::error_code failed;
    fs::create_directories(parts_, failed);
    if (failed)
      throw FileError(parts_ + ": cannot be created: " + failed.message(), ExitCode::kEnvironment);
    write_file_atomically(path, settings_.dump(1) + "\n");
  }

  void make_missing_parts() const {
    std::vector<int64_t> missing;
    int64_t total_bytes = 0;
    int64_t done_bytes = 0;
    int64_t num_done = 0;
    for (int64_t i = options_.machine; i < num_shards(); i += options_.num_machines) {
      const int64_t bytes = plan_.shards[static_cast<size_t>(i)].bytes;
      total_bytes += bytes;
      if (has_part(i)) {
        done_bytes += bytes;
        ++num_done;
      } else {
        missing.push_back(i);
      }
    }
    if (num_done > 0) {
      reporter_.message("prepare",
                        "goes on: " + std::to_string(num_done) + " of " +
                            std::to_string(num_done + static_cast<int64_t>(missing.size())) +
                            " shards are there");
    }
    PipelineOptions pipeline;
    pipeline.records = options_.records;
    pipeline.token_type = type_;
    pipeline.num_workers = options_.num_workers;
    try {
      make_parts(
          plan_, missing, encoder_, pipeline, [this](int64_t shard) { return stem_of(shard); },
          done_bytes, total_bytes, reporter_);
    } catch (...) {
      keep_finished_parts();
      throw;
    }
  }

  // After an error: what a later run can go on from stays, and nothing else.
  void keep_finished_parts() const {
    int64_t num_done = 0;
    for (int64_t i = 0; i < num_shards(); ++i) num_done += has_part(i) ? 1 : 0;
    if (num_done > 0) {
      reporter_.message("prepare", std::to_string(num_done) + " of " + std::to_string(num_shards()) +
                                       " shards are finished and stay in " + parts_ +
                                       "; the next run goes on from them");
    } else if (options_.num_machines == 1) {
      std::error_code ignored;  // the error that stopped the run is the one to report
      fs::remove_all(parts_, ignored);
    }
  }

  // Temporary files of a run that was killed. Other machines write into the same folder: theirs
  // stay.
  void remove_leftovers() const {
    if (options_.num_machines > 1) return;
    const auto remove_in = [](const fs::path& folder, const std::string& start) {
      if (!fs::exists(folder)) return;
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(start)) continue;
        for (const char* temporary : {".tmp-", ".lengths-", ".documents-"}) {
          if (name.find(temporary) == std::string::npos) continue;
          fs::remove(entry.path());
          break;
        }
      }
    };
    remove_in(parts_, "");
    std::vector<std::string> paths = {manifest_path_};
    if (options_.layout == OutputLayout::kRows) {
      remove_in(options_.out, "");
    } else {
      for (const std::string& path : output_paths()) paths.push_back(path);
    }
    for (const std::string& path : paths) {
      const fs::path folder = fs::path(path).parent_path();
      remove_in(folder.empty() ? "." : folder, fs::path(path).filename().string());
    }
  }

  // Parts of input that has changed since. Other machines may see other input for a while: theirs stay.
  void remove_stale_parts() const {
    if (options_.num_machines > 1) return;
    std::set<std::string> names = {"plan"};
    for (const Shard& shard : plan_.shards) names.insert(shard.identity);
    for (const fs::directory_entry& entry : fs::directory_iterator(parts_)) {
      const std::string name = entry.path().filename().string();
      if (!names.contains(name.substr(0, name.find('.')))) fs::remove(entry.path());
    }
  }

  int64_t num_shards() const { return static_cast<int64_t>(plan_.shards.size()); }
  bool has_part(int64_t shard) const { return part_is_whole(stem_of(shard)); }

  PartCounts count_parts(bool all) const {
    PartCounts counts;
    for (int64_t i = 0; i < num_shards(); ++i) {
      if (!has_part(i)) {
        if (!all) continue;
        throw ConfigError(error_text(
            "--merge", parts_, "all " + std::to_string(num_shards()) + " parts",
            "none for shard " + std::to_string(i) + "; has every --shard run finished?"));
      }
      counts.add(read_part_counts(stem_of(i)));
    }
    return counts;
  }

  PrepareResult merge() const {
    PrepareResult result;
    result.counts = count_parts(true);
    if (result.counts.documents == 0) {
      std::string skipped;
      for (const auto& [reason, count] : result.counts.skipped) {
        skipped += (skipped.empty() ? ": " : ", ") + std::to_string(count) + " " + reason;
      }
      fs::remove_all(parts_);
      throw ConfigError(
          error_text("--input " + options_.inputs.front(), "", "at least one document",
                     "none in " + std::to_string(plan_.files.size()) + " files" + skipped));
    }
    std::vector<std::string> stems;
    for (int64_t i = 0; i < num_shards(); ++i) stems.push_back(stem_of(i));
    if (options_.layout == OutputLayout::kRows) {
      // A run that stopped here may have left files of rows: all are made anew.
      for (const std::string& path : row_files_in(options_.out)) fs::remove(path);
    }
    const Json outputs = options_.layout == OutputLayout::kRows
                             ? put_rows_together(stems, result)
                             : put_token_files_together(stems, result);
    Json inputs = Json::array();
    for (const InputFile& file : plan_.files)
      inputs.push_back(Json{{"path", file.path}, {"bytes", file.bytes}});
    Json manifest{{"documents", result.counts.documents},
                  {"tokens", result.counts.tokens},
                  {"text_bytes", result.counts.text_bytes},
                  {"skipped", result.counts.skipped},
                  {"replaced", result.counts.replaced}};
    if (options_.layout == OutputLayout::kRows) {
      manifest["rows"] = result.rows;
      manifest["dropped_tokens"] = result.dropped_tokens;
    }
    manifest["outputs"] = outputs;
    manifest["settings"] = settings_;
    manifest["inputs"] = inputs;
    write_file_atomically(manifest_path_, manifest.dump(1) + "\n");
    fs::remove_all(parts_);
    return result;
  }

  Json put_token_files_together(const std::vector<std::string>& stems,
                                PrepareResult& result) const {
    Json outputs = Json::array();
    for (const TokenFiles& one : assemble(stems, layout_, type_, result.counts.tokens, reporter_)) {
      const formats::IndexedDatasetWriter::Digests& digests = one.digests;
      outputs.push_back(Json{{"documents", one.documents},
                             {"tokens", one.tokens},
                             {"bin", output_entry({formats::bin_path(one.prefix).string(),
                                                   digests.bin_bytes, digests.bin_sha256},
                                                  result)},
                             {"idx", output_entry({formats::idx_path(one.prefix).string(),
                                                   digests.idx_bytes, digests.idx_sha256},
                                                  result)}});
    }
    return outputs;
  }

  Json put_rows_together(const std::vector<std::string>& stems, PrepareResult& result) const {
    const AssembledRows rows = assemble_rows(stems, options_.out, options_.rows, reporter_);
    result.rows = rows.rows;
    result.dropped_tokens = rows.dropped_tokens;
    Json outputs = Json::array();
    for (const RowFile& file : rows.files)
      outputs.push_back(Json{{"file", output_entry({file.path, file.bytes, file.sha256}, result)}});
    return outputs;
  }

  // Also added to the result. Names are those from the manifest's folder.
  Json output_entry(const OutputFile& file, PrepareResult& result) const {
    result.outputs.push_back(file);
    const fs::path folder = fs::path(manifest_path_).parent_path();
    return Json{{"file", fs::path(file.path).lexically_relative(folder).string()},
                {"bytes", file.bytes},
                {"sha256", file.sha256}};
  }

  const PrepareOptions& options_;
  const TextEncoder& encoder_;
  Reporter& reporter_;
  const formats::TokenType type_;
  const Layout layout_;
  const std::string parts_;
  const std::string manifest_path_;
  Plan plan_;
  Json settings_;
};

}  // namespace

PrepareResult prepare_token_files(const PrepareOptions& options, const TextEncoder& encoder,
                                  Reporter& reporter) {
  check_options(options);
  return Preparation(options, encoder, reporter).run();
}

}  // namespace deltatrain::prepare
