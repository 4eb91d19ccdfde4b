#include "prepare/row_assembly.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/reference_random.h"
#include "formats/arrow_ipc.h"
#include "prepare/part_file.h"

namespace deltatrain::prepare {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kRowsInBatch = 1000;         // of datasets' writer
constexpr int64_t kBytesInFile = 500'000'000;  // its largest file
constexpr const char* kColumn = "input_ids";

// The documents of all parts, by their number.
class Documents {
 public:
  explicit Documents(const std::vector<std::string>& part_stems) {
    for (const std::string& stem : part_stems) {
      const PartReader& part = parts_.emplace_back(stem, sizeof(int32_t));
      first_documents_.push_back(count());
      first_tokens_.push_back(ends_.empty() ? 0 : ends_.back());
      int64_t end = first_tokens_.back();
      for (const int32_t length : part.lengths()) {
        if (length < 0) continue;
        end += length;
        ends_.push_back(end);
      }
    }
  }

  int64_t count() const { return static_cast<int64_t>(ends_.size()); }
  int64_t num_tokens() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t length(int64_t document) const { return end(document) - end(document - 1); }

  // Valid until the next call.
  std::span<const int32_t> tokens(int64_t document) {
    release_pages();
    const auto after = std::upper_bound(first_documents_.begin(), first_documents_.end(), document);
    const auto part = static_cast<size_t>(after - first_documents_.begin()) - 1;
    const auto* ids = reinterpret_cast<const int32_t*>(parts_[part].tokens().data());
    bytes_used_ += static_cast<int64_t>(sizeof(int32_t)) * length(document);
    return {ids + (end(document - 1) - first_tokens_[part]), static_cast<size_t>(length(document))};
  }

 private:
  int64_t end(int64_t document) const {
    return document < 0 ? 0 : ends_[static_cast<size_t>(document)];
  }

  // Documents lie anywhere, and the system brings in pages around each: unless they are given back,
  // all parts would soon count as memory.
  void release_pages() {
    if (bytes_used_ < int64_t{1} << 24) return;
    bytes_used_ = 0;
    for (const PartReader& part : parts_) drop_pages(part.tokens());
  }

  std::deque<PartReader> parts_;
  int64_t bytes_used_ = 0;                // since pages were given back
  std::vector<int64_t> first_documents_;  // of each part
  std::vector<int64_t> first_tokens_;
  std::vector<int64_t> ends_;  // of each document, in tokens from the start of all
};

// Borders that cut `count` things into `parts` contiguous shares, the first ones one longer.
std::vector<int64_t> shares(int64_t count, int64_t parts) {
  std::vector<int64_t> borders{0};
  for (int64_t i = 0; i < parts; ++i)
    borders.push_back(borders.back() + count / parts + (i < count % parts ? 1 : 0));
  return borders;
}

// Calls visit(begin, end) for each run of documents whose last tokens are dropped.
template <class Visit>
void for_each_batch(int64_t num_documents, const RowLayout& layout, Visit visit) {
  if (layout.drop_tails == DropTails::kOnce) return visit(int64_t{0}, num_documents);
  const std::vector<int64_t> borders =
      shares(num_documents, std::min(layout.map_processes, num_documents));
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    for (int64_t begin = borders[i]; begin < borders[i + 1]; begin += layout.map_batch_size)
      visit(begin, std::min(begin + layout.map_batch_size, borders[i + 1]));
  }
}

// Rows to files, each with its share of them.
class RowWriter {
 public:
  RowWriter(const std::string& folder, int64_t num_rows, int64_t num_files, int64_t seq_length,
            Reporter& reporter)
      : folder_(folder),
        num_rows_(num_rows),
        row_length_(seq_length),
        borders_(shares(num_rows, num_files)),
        reporter_(reporter) {}

  // Tokens of one run of rows, end to end; what does not fill a row waits for more.
  void write(std::span<const int32_t> tokens) {
    while (!tokens.empty() && done_ + rows_waiting() < num_rows_) {
      const int64_t room = room_in_batch() * row_length_ - static_cast<int64_t>(waiting_.size());
      const auto count = std::min(static_cast<size_t>(room), tokens.size());
      waiting_.insert(waiting_.end(), tokens.begin(),
                      tokens.begin() + static_cast<std::ptrdiff_t>(count));
      tokens = tokens.subspan(count);
      if (static_cast<int64_t>(count) == room) flush();
    }
  }

  // Forgets a row that is not full.
  void drop_tail() { waiting_.resize(static_cast<size_t>(rows_waiting() * row_length_)); }

  std::vector<RowFile> finish() {
    flush();
    DELTATRAIN_CHECK(done_ == num_rows_,
                     std::to_string(done_) + " of " + std::to_string(num_rows_));
    return std::move(files_);
  }

 private:
  int64_t rows_waiting() const { return static_cast<int64_t>(waiting_.size()) / row_length_; }

  // Rows that the batch under way can hold: it ends with its file.
  int64_t room_in_batch() const {
    return std::min(kRowsInBatch, borders_[files_.size() + 1] - done_);
  }

  std::string name(size_t file) const {
    char text[48];
    std::snprintf(text, sizeof text, "data-%05zu-of-%05zu.arrow", file, borders_.size() - 1);
    return (fs::path(folder_) / text).string();
  }

  void flush() {
    if (waiting_.empty()) return;
    if (writer_ == nullptr) {
      static const std::string metadata =
          R"({"info": {"features": {"input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, )"
          R"("_type": "List"}}}})";
      writer_ = std::make_unique<formats::ArrowListWriter>(name(files_.size()), kColumn, metadata);
    }
    writer_->write_batch(waiting_, row_length_);
    done_ += rows_waiting();
    waiting_.clear();
    reporter_.progress("rows", done_, num_rows_, "rows", "");
    if (done_ < borders_[files_.size() + 1]) return;
    const auto [sha256, bytes] = writer_->commit();
    writer_ = nullptr;
    files_.push_back({name(files_.size()), bytes, sha256});
  }

  const std::string folder_;
  const int64_t num_rows_;
  const int64_t row_length_;
  const std::vector<int64_t> borders_;  // rows of the files
  Reporter& reporter_;
  std::unique_ptr<formats::ArrowListWriter> writer_;
  std::vector<int32_t> waiting_;
  int64_t done_ = 0;
  std::vector<RowFile> files_;
};

RowFile write_text(const fs::path& path, const std::string& text) {
  write_file_atomically(path, text);
  Sha256 sha;
  sha.update(text.data(), text.size());
  return {path.string(), static_cast<int64_t>(text.size()), sha.hex()};
}

std::string dataset_info() {
  const Json feature{{"dtype", "int32"}, {"_type", "Value"}};
  return Json{{"citation", ""},
              {"description", ""},
              {"features", Json{{kColumn, Json{{"feature", feature}, {"_type", "List"}}}}},
              {"homepage", ""},
              {"license", ""}}
      .dump(2);
}

std::string state(const std::vector<RowFile>& files) {
  Json names = Json::array();
  Sha256 digests;
  for (const RowFile& file : files) {
    names.push_back(Json{{"filename", fs::path(file.path).filename().string()}});
    digests.update(file.sha256.data(), file.sha256.size());
  }
  // 16 digits that differ for different content.
  return Json{{"_data_files", names},       {"_fingerprint", digests.hex().substr(0, 16)},
              {"_format_columns", nullptr}, {"_format_kwargs", Json::object()},
              {"_format_type", nullptr},    {"_output_all_columns", false},
              {"_split", "train"}}
      .dump(2);
}

}  // namespace

AssembledRows assemble_rows(const std::vector<std::string>& part_stems, const std::string& folder,
                            const RowLayout& layout, Reporter& reporter) {
  Documents documents(part_stems);
  std::vector<int64_t> order;
  if (layout.shuffle) {
    order = data::NumpyGenerator(layout.seed).permutation(documents.count());
  } else {
    order.resize(static_cast<size_t>(documents.count()));
    std::iota(order.begin(), order.end(), int64_t{0});
  }

  AssembledRows result;
  for_each_batch(documents.count(), layout, [&](int64_t begin, int64_t end) {
    int64_t tokens = 0;
    for (int64_t i = begin; i < end; ++i) tokens += documents.length(order[static_cast<size_t>(i)]);
    result.rows += tokens / layout.seq_length;
    result.dropped_tokens += tokens % layout.seq_length;
  });
  if (result.rows == 0) {
    throw ConfigError(error_text(folder, "rows",
                                 "at least one of " + std::to_string(layout.seq_length) + " ids",
                                 "none from " + std::to_string(documents.num_tokens()) + " ids"));
  }

  // As datasets counts: values and offsets of 32 bits.
  const int64_t bytes = result.rows * (layout.seq_length + 1) * 4;
  const int64_t num_files =
      std::min(result.rows, std::max(bytes / kBytesInFile + 1, layout.map_processes));
  fs::create_directories(folder);
  RowWriter writer(folder, result.rows, num_files, layout.seq_length, reporter);
  for_each_batch(documents.count(), layout, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      writer.write(documents.tokens(order[static_cast<size_t>(i)]));
    writer.drop_tail();
  });
  result.files = writer.finish();
  const std::string state_text = state(result.files);
  result.files.push_back(write_text(fs::path(folder) / "dataset_info.json", dataset_info()));
  result.files.push_back(write_text(fs::path(folder) / "state.json", state_text));
  return result;
}

std::vector<std::string> row_files_in(const std::string& folder) {
  std::vector<std::string> paths;
  if (!fs::is_directory(folder)) return paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "state.json" || name == "dataset_info.json" ||
        (name.starts_with("data-") && name.find(".arrow") != std::string::npos)) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace deltatrain::prepare
