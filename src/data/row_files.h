// Token rows of one length, from an Arrow data set folder as Hugging
// Face `datasets` saves it, or from token files whose sequences all
// have that length (what `prepare --convert` makes of such a folder).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace deltatrain::data {

class RowFiles {
 public:
  virtual ~RowFiles() = default;
  virtual int64_t num_rows() const = 0;
  virtual int64_t row_length() const = 0;
  // Thread-safe. FormatError for an id that is not in [0, vocab_size) where that is not 0.
  virtual void read(int64_t row, std::span<int32_t> out, int64_t vocab_size) const = 0;
  virtual std::string describe(int64_t row) const = 0;
};

// `path` is a folder with state.json, or a prefix of token files. FormatError when rows differ in
// length (the row is named) or there are none.
std::unique_ptr<const RowFiles> open_row_files(const std::string& path,
                                               const std::string& column = "input_ids");

// The .arrow files of a data set folder in the order
// of its state.json; FormatError where that names none.
std::vector<std::string> arrow_files_of(const std::string& folder);

}  // namespace deltatrain::data
