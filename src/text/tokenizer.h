// Text to token ids and back, equal to Hugging Face `tokenizers` on every input.
//
// A Tokenizer is loaded once, never changes, and may be used by any number of threads at once.
// Ids equal those of `tokenizers` for the same tokenizer.json; what is understood and what is refused by
// name is listed in docs/formats/tokenizer.md.
//
// Text is UTF-8. Bytes that are not are read as U+FFFD, one for each maximal
// ill-formed part, as Python's bytes.decode(errors="replace") gives them;
// who wants to refuse or skip such text asks text/utf8.h before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::text {

// Whether encode() applies the tokenizer's post-processor, which puts BOS and the like around the text.
// Special tokens spelled out in the text become their ids either way.
enum class AddSpecialTokens { kNo, kYes };

// Whether decode() leaves out tokens marked special.
enum class SkipSpecialTokens { kNo, kYes };

class TokenizerModel;  // the loaded tables; text/tokenizer_model.h

class Tokenizer {
 public:
  // `path` is a tokenizer.json or tokenizer.model (SentencePiece's BPE, or Llama 3's own), or a folder with
  // one; tokenizer_config.json, special_tokens_map.json and generation_config.json beside it, where present,
  // name the BOS, EOS and padding tokens. add_bos_token and add_eos_token there are obeyed with a tokenizer.model;
  // beside a tokenizer.json, whose post-processor decides, they must say what that does.
  // Throws FileError, FormatError (naming file and key) or UnsupportedError (naming the component type).
  static Tokenizer load(const std::filesystem::path& path);

  ~Tokenizer();
  Tokenizer(const Tokenizer&);  // shares the tables, which never change
  Tokenizer& operator=(const Tokenizer&);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  std::vector<int32_t> encode(std::string_view text, AddSpecialTokens add) const;
  // Appends the ids to `ids`; faster in a loop.
  void encode(std::string_view text, AddSpecialTokens add, std::vector<int32_t>& ids) const;

  // Unknown ids are left out, as the reference does. Never returns ill-formed UTF-8.
  std::string decode(std::span<const int32_t> ids, SkipSpecialTokens skip) const;

  // One more than the highest id: the least number of rows that an embedding must have.
  int64_t vocab_size() const;
  // Ids that have a token; less than vocab_size() when there are gaps.
  int64_t num_tokens() const;

  // The token as it stands in the file (byte-level tokens in their printable form, such as "\u0120the");
  // empty for an id without a token.
  std::string token_text(int32_t id) const;
  // The bytes that the token stands for in the middle of a text. May be part of a character.
  std::string token_bytes(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token) const;
  bool is_special(int32_t id) const;
  std::vector<int32_t> special_ids() const;  // ascending

  // As tokenizer_config.json names them; BOS and EOS else as the post-processor and the usual names tell.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;

  // What AddSpecialTokens::kYes does, for people: "<|begin_of_text|> (128000) in front, nothing behind".
  std::string special_tokens_rule() const;

  const TokenizerModel& model() const { return *model_; }

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerModel> model);
  std::shared_ptr<const TokenizerModel> model_;  // shared by copies: immutable, and large
};

// Decodes a growing sequence: what append() and finish() return, joined, equals decode() of all ids, and
// every piece is well-formed UTF-8. Bytes of an unfinished character are held back. For one thread.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, SkipSpecialTokens skip);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string append(int32_t id);
  std::string finish();  // what was held back; the decoder then starts anew

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Names of the files that make up a tokenizer in a Hugging Face folder, for those who copy one.
std::span<const std::string_view> tokenizer_file_names();

struct TokenizerFile {
  std::string name;  // in the folder to which it is copied
  std::string content;
};

// The files of the tokenizer at `path`, a folder or a file, for a copy that load() finds in another folder. A file
// gets the name that its content calls for, tokenizer.json or tokenizer.model, and comes with the files beside it
// that name its tokens. Empty for a folder without a tokenizer. Throws FileError.
std::vector<TokenizerFile> read_tokenizer_files(const std::filesystem::path& path);

// Whether load() finds a tokenizer's file in this folder.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace deltatrain::text
