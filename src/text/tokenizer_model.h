// The tables and stages behind a Tokenizer. They never change after loading.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/pipeline.h"
#include "text/word_cache.h"

namespace deltatrain::text {

struct NamedTokens {
  std::optional<int32_t> bos, eos, pad;
};

// What a file says, before the tables for searching are built.
struct TokenizerParts {
  std::string where;  // the file, for messages
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  std::vector<int32_t> ids_in_front, ids_behind;  // by the post-processor
  TokenTable tokens;
  std::vector<Merge> merges;
  BpeSettings settings;
  NamedTokens named;  // where the file says so
};

// Each reads the bytes of one kind of file. Throws FormatError or UnsupportedError.
TokenizerParts read_tokenizer_json(std::string_view json, const std::string& where);
TokenizerParts read_tiktoken_file(std::string_view bytes, const std::string& where);       // Llama 3's own
TokenizerParts read_sentencepiece_file(std::string_view bytes, const std::string& where);  // BPE models

// Whether the file is lines of base64 and rank.
bool is_tiktoken_file(std::string_view bytes);

// What one encode() needs for itself.
struct EncodeScratch {
  WordCache cache;
  BpeScratch merging;
};

class TokenizerModel {
 public:
  explicit TokenizerModel(TokenizerParts parts);

  void encode(std::string_view text, std::vector<int32_t>& ids) const;  // without the post-processor
  const std::vector<int32_t>& ids_in_front() const { return ids_in_front_; }
  const std::vector<int32_t>& ids_behind() const { return ids_behind_; }

  // The token as decode() sees it; nothing for an id without one.
  std::optional<std::string> decoder_text(int32_t id) const;
  const AddedToken* added_token(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token) const;
  bool is_special_text(std::string_view token) const;
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  const std::vector<DecoderStep>& decoder() const { return decoder_; }
  const std::vector<PreTokenizerStep>& pre_tokenizer() const { return pre_tokenizer_; }
  const std::vector<NormalizerStep>& normalizer() const { return normalizer_; }
  const Bpe& bpe() const { return bpe_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t num_tokens() const { return num_tokens_; }
  bool is_byte_level() const;  // decodes byte-level tokens

  // While loading, before the model is shared.
  NamedTokens named;
  void set_ids_around(std::vector<int32_t> in_front, std::vector<int32_t> behind);

 private:
  void encode_plain(std::string_view text, bool at_start, EncodeScratch& scratch, std::vector<int32_t>& ids) const;
  void encode_words(std::string_view text, bool at_start, EncodeScratch& scratch, std::vector<int32_t>& ids) const;
  template <WordPattern pattern>
  void encode_word_pattern(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& ids) const;

  // Scratch memory is lent to one encode() at a time, and goes on to the next with what its cache has learned.
  class ScratchPool {
   public:
    std::unique_ptr<EncodeScratch> take();
    void give_back(std::unique_ptr<EncodeScratch> scratch);

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<EncodeScratch>> free_;
  };

  std::vector<AddedToken> added_tokens_;
  std::unordered_map<int32_t, size_t> added_by_id_;
  std::unordered_map<std::string, int32_t> added_by_content_;
  std::unordered_map<int32_t, std::string> normalized_content_;  // where it differs from the content
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  std::vector<NormalizerStep> normalizer_;
  std::vector<PreTokenizerStep> pre_tokenizer_;
  std::vector<DecoderStep> decoder_;
  std::vector<int32_t> ids_in_front_, ids_behind_;
  Bpe bpe_;
  WordSplitter splitter_;
  std::optional<WordPattern> direct_pattern_;  // words by this pattern, then bytes: no pieces needed
  bool raw_bytes_ = false;                     // the last pre-tokenizer step may leave raw bytes
  int64_t vocab_size_ = 0, num_tokens_ = 0;
  mutable ScratchPool pool_;
};

}  // namespace deltatrain::text
