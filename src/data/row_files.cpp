#include "data/row_files.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "data/sample_source.h"
#include "formats/arrow_ipc.h"
#include "formats/indexed_dataset.h"

namespace deltatrain::data {

namespace {

namespace fs = std::filesystem;

class ArrowRows final : public RowFiles {
 public:
  ArrowRows(const std::string& folder, const std::string& column) {
    for (const std::string& path : arrow_files_of(folder)) {
      files_.emplace_back(path);
      const formats::ArrowFile& file = files_.back();
      for (int64_t b = 0; b < file.num_batches(); ++b) {
        if (file.batch_rows(b) == 0) continue;
        batches_.push_back({num_rows_, files_.size() - 1, file.list_column(b, column)});
        check_lengths(batches_.back());
        num_rows_ += file.batch_rows(b);
      }
    }
    if (num_rows_ == 0) throw FormatError(error_text(folder, "", "rows", "none"));
  }

  int64_t num_rows() const override { return num_rows_; }
  int64_t row_length() const override { return row_length_; }

  void read(int64_t row, std::span<int32_t> out, int64_t vocab_size) const override {
    const Batch& batch = batch_of(row);
    batch.rows.read(row - batch.first_row, 0, out);
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0 && (vocab_size == 0 || out[i] < vocab_size)) continue;
      throw FormatError(error_text(
          files_[batch.file].path(),
          "row " + std::to_string(row) + " of the data set, position " + std::to_string(i),
          "an id from 0 to " + std::to_string(vocab_size - 1), std::to_string(out[i])));
    }
  }

  std::string describe(int64_t row) const override {
    return "row " + std::to_string(row) + " in " +
           fs::path(files_[batch_of(row).file].path()).filename().string();
  }

 private:
  struct Batch {
    int64_t first_row;
    size_t file;
    formats::ArrowListColumn rows;
  };

  const Batch& batch_of(int64_t row) const {
    const auto after =
        std::upper_bound(batches_.begin(), batches_.end(), row,
                         [](int64_t r, const Batch& batch) { return r < batch.first_row; });
    return *(after - 1);
  }

  void check_lengths(const Batch& batch) {
    if (row_length_ == 0) row_length_ = batch.rows.length(0);
    for (int64_t i = 0; i < batch.rows.num_rows(); ++i) {
      if (batch.rows.length(i) == row_length_ && row_length_ > 0 && !batch.rows.is_null(i))
        continue;
      throw FormatError(
          error_text(files_[batch.file].path(),
                     "row " + std::to_string(batch.first_row + i) + " of the data set",
                     std::to_string(row_length_) + " ids like the first row",
                     batch.rows.is_null(i) ? "null" : std::to_string(batch.rows.length(i))));
    }
  }

  std::deque<formats::ArrowFile>
      files_;  // its elements stay where they are: columns point into them
  std::vector<Batch> batches_;
  int64_t num_rows_ = 0;
  int64_t row_length_ = 0;
};

class IndexedRows final : public RowFiles {
 public:
  explicit IndexedRows(const std::string& prefix) : dataset_(prefix) {
    if (dataset_.num_sequences() == 0)
      throw FormatError(error_text(prefix + ".idx", "", "sequences", "none"));
    for (int64_t i = 0; i < dataset_.num_sequences(); ++i) {
      if (dataset_.length(i) == row_length()) continue;
      throw FormatError(
          error_text(prefix + ".idx", "length of sequence " + std::to_string(i),
                     std::to_string(row_length()) + " like the first, since this order takes rows",
                     std::to_string(dataset_.length(i))));
    }
  }

  int64_t num_rows() const override { return dataset_.num_sequences(); }
  int64_t row_length() const override { return dataset_.length(0); }
  void read(int64_t row, std::span<int32_t> out, int64_t vocab_size) const override {
    dataset_.read(dataset_.first_token(row), out, vocab_size);
  }
  std::string describe(int64_t row) const override { return "row " + std::to_string(row); }

 private:
  const formats::IndexedDataset dataset_;
};

}  // namespace

std::vector<std::string> arrow_files_of(const std::string& folder) {
  const std::string state = (fs::path(folder) / "state.json").string();
  std::vector<std::string> files;
  try {
    const nlohmann::json json = nlohmann::json::parse(read_file(state));
    for (const auto& entry : json.at("_data_files")) {
      files.push_back((fs::path(folder) / entry.at("filename").get<std::string>()).string());
    }
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(error_text(state, "_data_files", "a list of file names", error.what()));
  }
  if (files.empty()) throw FormatError(error_text(state, "_data_files", "file names", "none"));
  return files;
}

std::unique_ptr<const RowFiles> open_row_files(const std::string& path, const std::string& column) {
  if (fs::is_directory(path)) return std::make_unique<ArrowRows>(path, column);
  return std::make_unique<IndexedRows>(find_token_files(path));
}

}  // namespace deltatrain::data
