// Token files in Megatron's indexed form: PREFIX.bin holds the ids of all sequences end to end,
// PREFIX.idx where each begins. docs/formats/indexed_dataset.md specifies both to the byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"  // MappedFile

namespace deltatrain::formats {

// Codes of the .idx header.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t token_bytes(TokenType type);
std::string token_type_name(TokenType type);  // "uint16", ...

// uint16 below 65,500 entries, otherwise int32: the rule of Megatron's preprocessing.
TokenType token_type_for_vocabulary(int64_t vocab_size);

std::filesystem::path bin_path(const std::string& prefix);
std::filesystem::path idx_path(const std::string& prefix);

// Read access through memory maps. Everything in the index is checked against the sizes of both
// files when they are opened: FormatError names the file, the field, what it should be and what it
// is.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }

  int64_t length(int64_t sequence) const;       // tokens
  int64_t first_token(int64_t sequence) const;  // position of its first token in the file
  int64_t document_begin(
      int64_t document) const;  // its first sequence; document in [0, num_documents]

  // The sequence that holds this token (the last one that begins there, if some are empty).
  int64_t sequence_of_token(int64_t token) const;

  // Copies tokens [first, first + out.size()) of the file. FormatError for a negative id, or one at
  // or past vocab_size where that is not 0; the message names sequence and position.
  void read(int64_t first, std::span<int32_t> out, int64_t vocab_size) const;

 private:
  void check_index();
  void check_sequences();

  std::string prefix_;
  MappedFile bin_;
  MappedFile idx_;
  TokenType type_ = TokenType::kI32;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  int64_t num_tokens_ = 0;
  bool leading_zero_ = true;  // false: document indices 1..N, as FLA's conversion writes them
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* documents_ = nullptr;
};

// How an index lists its documents: 0, 1, ..., S as Megatron's own writer does, or without the
// leading 0 as FLA's conversion script does.
enum class DocumentIndices : uint8_t { kMegatron, kFla };

// Appends the ids in the type's bytes. FormatError for an id that does not fit.
void pack_tokens(TokenType type, std::span<const int32_t> tokens, std::vector<std::byte>& out);

// Writes both files; memory does not grow with their number of sequences. Nothing exists under the
// final names before commit(). Failed writes are FileError, exit code 5.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, TokenType type,
                       DocumentIndices indices = DocumentIndices::kMegatron);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Ids must fit the type: otherwise FormatError.
  void add_sequence(std::span<const int32_t> tokens);
  void end_document();
  void add_document(std::span<const int32_t> tokens) {
    add_sequence(tokens);
    end_document();
  }

  // Documents of one sequence each, whose tokens are already in the type's bytes and lie end to end; one of length 0 is a
  // document without a sequence, as Megatron writes it.
  void add_raw_documents(std::span<const std::byte> bytes, std::span<const int32_t> lengths);

  // The tokens of all documents are those of this file, which has been flushed to the disk and does not change any more: commit()
  // makes the .bin a second name of it (a hard link), or a copy where the file system has none. Before the first document;
  // documents are then added raw, with the bytes that stand in the file.
  void take_tokens_of(const std::filesystem::path& file);

  int64_t num_sequences() const;
  int64_t num_documents() const;
  int64_t num_tokens() const;

  struct Digests {
    std::string bin_sha256;
    std::string idx_sha256;
    int64_t bin_bytes = 0;
    int64_t idx_bytes = 0;
  };
  Digests commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain::formats
