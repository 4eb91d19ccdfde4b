// What is kept of a finished shard until the outputs are put together:
//
//   STEM.tokens    the ids of its documents end to end, in the output's element type
//   STEM.lengths   per record the number of its tokens as i32, or -1 for a skipped one: so the
//   number of a
//                  record in the whole input is known even where records were skipped
//   STEM.json      counts; written last, so that a part with it is whole
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "prepare/records.h"

namespace deltatrain::prepare {

struct PartCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  Counts skipped;
  Counts replaced;

  void add(const PartCounts& other);
};

class PartWriter {
 public:
  explicit PartWriter(std::string stem);
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  void append(std::span<const std::byte> tokens, std::span<const int32_t> lengths,
              const PartCounts& counts);
  PartCounts commit();

 private:
  std::string stem_;
  AtomicFileWriter tokens_;
  AtomicFileWriter lengths_;
  PartCounts counts_;
};

bool part_is_whole(const std::string& stem);
PartCounts read_part_counts(const std::string& stem);

// Checks that the three files agree: FormatError otherwise.
class PartReader {
 public:
  PartReader(const std::string& stem, int64_t token_bytes);

  const PartCounts& counts() const { return counts_; }
  std::span<const std::byte> tokens() const { return tokens_.bytes(); }
  const std::filesystem::path& tokens_path() const { return tokens_.path(); }
  std::span<const int32_t> lengths() const;

 private:
  PartCounts counts_;
  MappedFile tokens_;
  MappedFile lengths_;
};

}  // namespace deltatrain::prepare
