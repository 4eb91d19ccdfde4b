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

// Documents that follow each other in a part and go to one destination, to be written at once.
class DocumentRun {
 public:
  DocumentRun(std::span<const std::byte> tokens, size_t item_bytes)
      : tokens_(tokens), item_bytes_(item_bytes) {}

  void add(formats::IndexedDatasetWriter& writer, int32_t length) {
    if (&writer != writer_ || end_ - begin_ >= kMaxBytes || lengths_.size() == kMaxDocuments)
      flush();
    writer_ = &writer;
    lengths_.push_back(length);
    end_ += static_cast<size_t>(length) * item_bytes_;
  }
  void flush() {
    if (!lengths_.empty())
      writer_->add_raw_documents(tokens_.subspan(begin_, end_ - begin_), lengths_);
    lengths_.clear();
    begin_ = end_;
  }
  size_t begin() const { return begin_; }  // nothing before is read again

 private:
  static constexpr size_t kMaxBytes = size_t{1} << 22;
  static constexpr size_t kMaxDocuments = size_t{1} << 16;
  std::span<const std::byte> tokens_;
  size_t item_bytes_;
  formats::IndexedDatasetWriter* writer_ = nullptr;
  std::vector<int32_t> lengths_;
  size_t begin_ = 0, end_ = 0;  // of the run, in tokens_
};

// Appends the whole of a finished data set.
void append(const std::string& prefix, formats::IndexedDatasetWriter& writer,
            formats::TokenType type) {
  const formats::IndexedDataset dataset(prefix);
  const MappedFile bin(formats::bin_path(prefix));
  const int64_t item = formats::token_bytes(type);
  ReadPages pages(bin.bytes());
  DocumentRun run(bin.bytes(), static_cast<size_t>(item));
  for (int64_t d = 0; d < dataset.num_documents(); ++d) {
    const int64_t i = dataset.document_begin(d);
    run.add(writer,
            i == dataset.document_begin(d + 1) ? 0 : static_cast<int32_t>(dataset.length(i)));
    pages.read_to(run.begin());
  }
  run.flush();
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
    // The tokens of a single part are those of the output as they stand: no need to write them again.
    if (part_stems.size() == 1 && writers.size() == 1)
      writers[0]->take_tokens_of(part.tokens_path());
    ReadPages pages(part.tokens());
    DocumentRun run(part.tokens(), static_cast<size_t>(item));
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
      run.add(*writers[destination], length);
      pages.read_to(run.begin());
      ++document;
    }
    run.flush();
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
