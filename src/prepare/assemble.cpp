#include "prepare/assemble.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>

namespace deltatrain::prepare {

namespace {

TokenFiles commit(formats::IndexedDatasetWriter& writer, const std::string& prefix) {
  TokenFiles files;
  files.prefix = prefix;
  files.documents = writer.num_documents();
  files.tokens = writer.num_tokens();
  files.digests = writer.commit();
  return files;
}

// Takes what was read of a map out of memory, a step at a time.
class ReadPages {
 public:
  explicit ReadPages(std::span<const std::byte> map) : map_(map) {}
  void read_to(size_t end) {
    if (end - dropped_ < kStep) return;
    drop_pages(map_.subspan(dropped_, end - dropped_));
    dropped_ = end;
  }

 private:
  static constexpr size_t kStep = size_t{1} << 26;
  std::span<const std::byte> map_;
  size_t dropped_ = 0;
};

// Appends the whole of a finished data set.
void append(const std::string& prefix, formats::IndexedDatasetWriter& writer,
            formats::TokenType type) {
  const formats::IndexedDataset dataset(prefix);
  const MappedFile bin(formats::bin_path(prefix));
  const int64_t item = formats::token_bytes(type);
  ReadPages pages(bin.bytes());
  for (int64_t d = 0; d < dataset.num_documents(); ++d) {
    const int64_t i = dataset.document_begin(d);
    if (i == dataset.document_begin(d + 1)) {
      writer.end_document();
      continue;
    }
    const auto begin = static_cast<size_t>(dataset.first_token(i) * item);
    const auto bytes = static_cast<size_t>(dataset.length(i) * item);
    writer.add_raw_document(bin.bytes().subspan(begin, bytes));
    pages.read_to(begin + bytes);
  }
}

}  // namespace

std::vector<std::string> Layout::prefixes() const {
  std::vector<std::string> names;
  if (num_partitions > 1) {
    for (int64_t i = 0; i < num_partitions; ++i) names.push_back(partition(i));
  }
  names.push_back(merged());
  if (valid_fraction > 0) names.push_back(valid());
  return names;
}

std::vector<TokenFiles> assemble(const std::vector<std::string>& part_stems, const Layout& layout,
                                 formats::TokenType type, int64_t total_tokens,
                                 Reporter& reporter) {
  const int64_t item = formats::token_bytes(type);
  // Destinations: the partitions, or the merged files and those for validation.
  const bool partitioned = layout.num_partitions > 1;
  std::vector<std::string> prefixes = layout.prefixes();
  if (partitioned) prefixes.pop_back();
  std::vector<std::unique_ptr<formats::IndexedDatasetWriter>> writers;
  for (const std::string& prefix : prefixes) {
    writers.push_back(std::make_unique<formats::IndexedDatasetWriter>(prefix, type));
  }

  int64_t record = 0;
  int64_t document = 0;
  int64_t tokens = 0;
  for (const std::string& stem : part_stems) {
    const PartReader part(stem, item);
    ReadPages pages(part.tokens());
    size_t offset = 0;
    for (const int32_t length : part.lengths()) {
      const int64_t number = record++;
      if (length < 0) continue;
      size_t destination = 0;
      if (partitioned) {
        destination = static_cast<size_t>(number % layout.num_partitions);
      } else if (layout.valid_fraction > 0) {
        const auto d = static_cast<double>(document);
        destination =
            std::floor((d + 1) * layout.valid_fraction) > std::floor(d * layout.valid_fraction) ? 1
                                                                                                : 0;
      }
      const size_t bytes = static_cast<size_t>(length) * static_cast<size_t>(item);
      if (bytes == 0) {
        writers[destination]->end_document();  // without a sequence, as Megatron writes it
      } else {
        writers[destination]->add_raw_document(part.tokens().subspan(offset, bytes));
      }
      offset += bytes;
      pages.read_to(offset);
      ++document;
    }
    tokens += part.counts().tokens;
    reporter.progress("merge", tokens, total_tokens, "tokens", "");
  }

  std::vector<TokenFiles> outputs;
  for (size_t i = 0; i < writers.size(); ++i) {
    outputs.push_back(commit(*writers[i], prefixes[i]));
    writers[i] = nullptr;
  }
  if (partitioned) {
    formats::IndexedDatasetWriter merged(layout.merged(), type);
    for (const std::string& prefix : prefixes) append(prefix, merged, type);
    outputs.push_back(commit(merged, layout.merged()));
  }
  return outputs;
}

}  // namespace deltatrain::prepare
