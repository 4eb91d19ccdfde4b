#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "formats/arrow_ipc.h"
#include "formats/text_column.h"

namespace deltatrain::formats {

namespace {

constexpr int64_t kRowsAtOnce = 4096;

class ArrowText final : public TextColumn {
 public:
  ArrowText(const std::filesystem::path& path, std::string column)
      : file_(path), column_(std::move(column)) {
    file_.check_text_column(column_);
    int64_t rows = 0;
    for (int64_t i = 0; i < file_.num_batches(); ++i) {
      groups_.push_back({rows, file_.batch_rows(i), file_.batch_begin(i),
                         static_cast<int64_t>(file_.batch_body(i).size())});
      rows += file_.batch_rows(i);
    }
  }

  int64_t num_groups() const override { return file_.num_batches(); }
  RowGroup group(int64_t index) const override { return groups_[static_cast<size_t>(index)]; }

  void select(int64_t index) override {
    if (selected_ >= 0) drop_pages(file_.batch_body(selected_));
    selected_ = index;
    row_ = 0;
    kept_ = {};
    texts_ = file_.text_column(index, column_);
  }

  bool next(std::vector<std::optional<std::string_view>>& rows) override {
    rows.clear();
    if (kept_.size() >= kKeptBytes) {
      // A single batch may be as large as the file: what was handed out goes out of memory again.
      drop_pages(kept_);
      kept_ = kept_.last(0);
    }
    const int64_t end = std::min(texts_.num_rows(), row_ + kRowsAtOnce);
    for (; row_ < end && kept_.size() < kKeptBytes; ++row_) {
      rows.push_back(texts_.text(row_));
      if (rows.back().has_value()) keep(*rows.back());
    }
    return !rows.empty();
  }

 private:
  static constexpr size_t kKeptBytes = size_t{1} << 26;

  // Texts lie in the order of their rows.
  void keep(std::string_view text) {
    const auto* const begin = kept_.data() != nullptr ? kept_.data() : as_bytes(text).data();
    const auto* const end = as_bytes(text).data() + text.size();
    if (end > begin) kept_ = {begin, end};
  }
  static std::span<const std::byte> as_bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }

  const ArrowFile file_;
  const std::string column_;
  std::vector<RowGroup> groups_;
  ArrowTextColumn texts_;
  int64_t selected_ = -1;
  int64_t row_ = 0;
  std::span<const std::byte> kept_;  // text that was handed out and is still in memory
};

}  // namespace

std::unique_ptr<TextColumn> open_arrow_text(const std::filesystem::path& path,
                                            const std::string& column) {
  return std::make_unique<ArrowText>(path, column);
}

}  // namespace deltatrain::formats
