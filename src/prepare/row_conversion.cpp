#include "prepare/row_conversion.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "data/row_files.h"
#include "formats/arrow_ipc.h"

namespace deltatrain::prepare {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRowsColumn = "input_ids";

class Conversion {
 public:
  Conversion(const ConversionOptions& options, Reporter& reporter)
      : options_(options),
        reporter_(reporter),
        files_(data::arrow_files_of(options.folder)),
        bin_(formats::bin_path(options.out).string()),
        idx_(formats::idx_path(options.out).string()),
        manifest_(options.out + ".manifest.json") {}

  ConversionResult run() {
    for (const std::string& path : {bin_, idx_, manifest_}) {
      if (options_.overwrite) {
        fs::remove(path);
      } else if (fs::exists(path)) {
        throw ConfigError(
            error_text(path, "", "no earlier output", "a file; give another --out or --overwrite"));
      }
    }
    const fs::path folder = fs::path(options_.out).parent_path();
    if (!folder.empty()) fs::create_directories(folder);
    const formats::IndexedDatasetWriter::Digests digests = write();
    try {
      check();
    } catch (...) {
      fs::remove(idx_);
      fs::remove(bin_);
      throw;
    }
    result_.outputs = {{bin_, digests.bin_bytes, digests.bin_sha256},
                       {idx_, digests.idx_bytes, digests.idx_sha256}};
    write_manifest();
    return result_;
  }

 private:
  formats::IndexedDatasetWriter::Digests write() {
    for (const std::string& path : files_) total_bytes_ += size_of(path);
    formats::IndexedDatasetWriter writer(options_.out, formats::TokenType::kI32, options_.indices);
    std::vector<int32_t> ids;
    for (const std::string& path : files_) {
      const formats::ArrowFile file(path);
      int64_t row_in_file = 0;
      for (int64_t b = 0; b < file.num_batches(); ++b) {
        if (file.batch_rows(b) == 0) continue;
        const formats::ArrowListColumn rows = file.list_column(b, kRowsColumn);
        for (int64_t i = 0; i < rows.num_rows(); ++i, ++row_in_file) {
          read(rows, i, path, row_in_file, ids);
          writer.add_document(ids);
        }
        drop_pages(file.batch_body(b));
      }
      result_.rows += row_in_file;
      done_bytes_ += size_of(path);
      reporter_.progress("convert", done_bytes_, total_bytes_, "B",
                         std::to_string(result_.rows) + " rows");
    }
    if (result_.rows == 0) throw FormatError(error_text(options_.folder, "", "rows", "none"));
    return writer.commit();
  }

  // For progress; 0 where there is none, which opening it will say.
  static int64_t size_of(const std::string& path) {
    std::error_code missing;
    const auto bytes = fs::file_size(path, missing);
    return missing ? 0 : static_cast<int64_t>(bytes);
  }

  // A row of the length of the very first, with ids that can be ids.
  void read(const formats::ArrowListColumn& rows, int64_t i, const std::string& path,
            int64_t row_in_file, std::vector<int32_t>& ids) {
    const auto refuse = [&](const std::string& what, const std::string& expected,
                            const std::string& got) {
      throw FormatError(
          error_text(path + ": row " + std::to_string(row_in_file), what, expected, got));
    };
    if (rows.is_null(i)) refuse("", "token ids", "null");
    if (result_.row_length == 0) result_.row_length = rows.length(i);
    if (rows.length(i) != result_.row_length || result_.row_length == 0) {
      refuse("",
             std::to_string(std::max<int64_t>(1, result_.row_length)) +
                 " ids like the first row of all",
             std::to_string(rows.length(i)));
    }
    ids.resize(static_cast<size_t>(result_.row_length));
    rows.read(i, 0, ids);
    for (size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] >= 0 && (options_.vocab_size == 0 || ids[t] < options_.vocab_size)) continue;
      refuse("position " + std::to_string(t),
             options_.vocab_size == 0
                 ? "an id that is not negative"
                 : "an id from 0 to " + std::to_string(options_.vocab_size - 1),
             std::to_string(ids[t]));
    }
  }

  // The outputs, opened as training opens them, against the input, opened anew.
  void check() {
    const formats::IndexedDataset dataset(options_.out);
    if (dataset.num_sequences() != result_.rows || dataset.num_documents() != result_.rows ||
        dataset.num_tokens() != result_.rows * result_.row_length) {
      throw CheckFailedError(error_text(
          idx_, "", std::to_string(result_.rows) + " rows of " + std::to_string(result_.row_length),
          std::to_string(dataset.num_sequences()) + " sequences with " +
              std::to_string(dataset.num_tokens()) + " ids"));
    }
    int64_t first_row = 0;
    for (const std::string& path : files_) {
      const formats::ArrowFile file(path);
      const int64_t count = file.num_rows();
      for (const int64_t row : std::set<int64_t>{0, count / 2, count - 1}) {
        if (row >= 0 && row < count) check_row(dataset, file, row, first_row + row);
      }
      first_row += count;
    }
  }

  void check_row(const formats::IndexedDataset& dataset, const formats::ArrowFile& file,
                 int64_t row_in_file, int64_t row) {
    int64_t batch = 0;
    int64_t row_in_batch = row_in_file;
    while (row_in_batch >= file.batch_rows(batch)) row_in_batch -= file.batch_rows(batch++);
    std::vector<int32_t> want(static_cast<size_t>(result_.row_length));
    std::vector<int32_t> got(want.size());
    file.list_column(batch, kRowsColumn).read(row_in_batch, 0, want);
    dataset.read(dataset.first_token(row), got, 0);
    if (got != want) {
      throw CheckFailedError(error_text(
          bin_, "sequence " + std::to_string(row),
          "the ids of " + file.path() + ": row " + std::to_string(row_in_file), "others"));
    }
    ++result_.checked_rows;
  }

  void write_manifest() const {
    const bool standard = options_.indices == formats::DocumentIndices::kMegatron;
    Json outputs = Json::array();
    for (const OutputFile& file : result_.outputs) {
      outputs.push_back(Json{{"file", fs::path(file.path).filename().string()},
                             {"bytes", file.bytes},
                             {"sha256", file.sha256}});
    }
    const Json manifest{{"rows", result_.rows},
                        {"row_length", result_.row_length},
                        {"tokens", result_.rows * result_.row_length},
                        {"checked_rows", result_.checked_rows},
                        {"document_indices", standard ? "megatron" : "fla"},
                        {"outputs", outputs},
                        {"inputs", files_}};
    write_file_atomically(manifest_, manifest.dump(1) + "\n");
  }

  const ConversionOptions& options_;
  Reporter& reporter_;
  const std::vector<std::string> files_;
  const std::string bin_;
  const std::string idx_;
  const std::string manifest_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
  ConversionResult result_;
};

}  // namespace

ConversionResult convert_rows(const ConversionOptions& options, Reporter& reporter) {
  return Conversion(options, reporter).run();
}

}  // namespace deltatrain::prepare
