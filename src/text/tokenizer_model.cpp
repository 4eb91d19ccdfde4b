#include "text/tokenizer_model.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"
#include "text/word_encoder.h"

namespace deltatrain::text {

std::unique_ptr<EncodeScratch> TokenizerModel::ScratchPool::take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void TokenizerModel::ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  scratch->merging.trim();
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(scratch));
}

namespace {

// The pattern if the words of these steps are exactly its matches, as raw bytes.
std::optional<WordPattern> direct_pattern(const std::vector<PreTokenizerStep>& steps) {
  if (steps.empty() || steps.back().kind != PreTokenizerStep::Kind::kByteLevel || steps.back().add_prefix_space) {
    return std::nullopt;
  }
  if (steps.size() == 1 && steps[0].use_regex) return WordPattern::kGpt2;
  if (steps.size() != 2 || steps[1].use_regex || steps[0].kind != PreTokenizerStep::Kind::kSplit) return std::nullopt;
  const bool every_match = (steps[0].behavior == SplitBehavior::kIsolated) ||
                           (steps[0].behavior == SplitBehavior::kRemoved && steps[0].invert);
  return every_match ? steps[0].pattern.word_pattern : std::nullopt;
}

}  // namespace

TokenizerModel::TokenizerModel(TokenizerParts parts)
    : named(parts.named),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      decoder_(std::move(parts.decoder)),
      ids_in_front_(std::move(parts.ids_in_front)),
      ids_behind_(std::move(parts.ids_behind)),
      bpe_(std::move(parts.tokens), parts.merges, std::move(parts.settings)) {
  const bool ends_with_bytes =
      !pre_tokenizer_.empty() && pre_tokenizer_.back().kind == PreTokenizerStep::Kind::kByteLevel;
  raw_bytes_ = ends_with_bytes && bpe_.has_byte_symbols();
  if (raw_bytes_) direct_pattern_ = direct_pattern(pre_tokenizer_);

  vocab_size_ = bpe_.tokens().end_id();
  num_tokens_ = bpe_.tokens().size();
  for (const AddedToken& token : parts.added_tokens) {
    vocab_size_ = std::max<int64_t>(vocab_size_, token.id + int64_t{1});
    if (!bpe_.tokens().contains(token.id)) ++num_tokens_;
    added_by_id_[token.id] = added_tokens_.size();
    added_by_content_[token.content] = token.id;
    added_tokens_.push_back(token);
    std::string pattern = token.pattern.empty() ? token.content : token.pattern;
    if (token.normalized && token.pattern.empty()) {
      normalize(normalizer_, pattern);
      if (pattern != token.content) normalized_content_[token.id] = pattern;
    }
    if (pattern.empty()) continue;
    AddedTokenMatcher& matcher = token.normalized ? normalized_matcher_ : raw_matcher_;
    if (const int64_t other = matcher.add(pattern, token); other >= 0) {
      throw FormatError(error_text(parts.where, "added_tokens: \"" + token.content + "\"",
                                   "a token that is found by a text of its own", "the same text as another's"));
    }
  }
}

void TokenizerModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  auto scratch = pool_.take();
  std::string repaired;
  if (find_ill_formed_utf8(text) != std::string_view::npos) {
    repaired = replace_ill_formed_utf8(text);
    text = repaired;
  }
  if (raw_matcher_.empty()) {
    encode_plain(text, true, *scratch, ids);
  } else {
    std::vector<Segment> segments;
    raw_matcher_.split(text, segments);
    for (const Segment& segment : segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        encode_plain(text.substr(segment.begin, segment.end - segment.begin), segment.begin == 0, *scratch, ids);
      }
    }
  }
  pool_.give_back(std::move(scratch));
}

void TokenizerModel::encode_plain(std::string_view text, bool at_start, EncodeScratch& scratch,
                                  std::vector<int32_t>& ids) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    normalized = text;
    normalize(normalizer_, normalized);
    text = normalized;
  }
  if (normalized_matcher_.empty()) {
    encode_words(text, at_start, scratch, ids);
    return;
  }
  std::vector<Segment> segments;
  normalized_matcher_.split(text, segments);
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      encode_words(text.substr(segment.begin, segment.end - segment.begin), at_start && segment.begin == 0, scratch,
                   ids);
    }
  }
}

template <WordPattern pattern>
void TokenizerModel::encode_word_pattern(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& ids) const {
  const char* p = text.data();
  const char* const end = p + text.size();
  WordEncoder encoder(bpe_, scratch.cache, scratch.merging.verdicts, end, ids);
  while (p < end) {
    const char* const q = splitter_.next<pattern>(p, end);
    encoder.add(p, static_cast<size_t>(q - p));
    p = q;
  }
  encoder.finish();
}

void TokenizerModel::encode_words(std::string_view text, bool at_start, EncodeScratch& scratch,
                                  std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  if (direct_pattern_) {
    switch (*direct_pattern_) {
      case WordPattern::kGpt2:
        return encode_word_pattern<WordPattern::kGpt2>(text, scratch, ids);
      case WordPattern::kLlama3:
        return encode_word_pattern<WordPattern::kLlama3>(text, scratch, ids);
      case WordPattern::kQwen2:
        return encode_word_pattern<WordPattern::kQwen2>(text, scratch, ids);
    }
  }
  Pieces pieces;
  pieces.text = text;
  pieces.pieces.push_back({0, text.size(), at_start});
  pre_tokenize(pre_tokenizer_, raw_bytes_, pieces);
  const std::string_view all = pieces.text;
  if (raw_bytes_) {
    WordEncoder encoder(bpe_, scratch.cache, scratch.merging.verdicts, all.data() + all.size(), ids);
    for (const Pieces::Piece& piece : pieces.pieces) encoder.add(all.data() + piece.begin, piece.end - piece.begin);
    encoder.finish();
    return;
  }
  for (const Pieces::Piece& piece : pieces.pieces) {
    bpe_.encode_characters(all.substr(piece.begin, piece.end - piece.begin), scratch.merging, ids);
  }
}

void TokenizerModel::set_ids_around(std::vector<int32_t> in_front, std::vector<int32_t> behind) {
  ids_in_front_ = std::move(in_front);
  ids_behind_ = std::move(behind);
}

std::optional<std::string> TokenizerModel::decoder_text(int32_t id) const {
  if (const auto normalized = normalized_content_.find(id); normalized != normalized_content_.end()) {
    return normalized->second;
  }
  if (const AddedToken* token = added_token(id)) return token->content;
  if (bpe_.tokens().contains(id)) return std::string(bpe_.tokens()[id]);
  return std::nullopt;
}

const AddedToken* TokenizerModel::added_token(int32_t id) const {
  const auto found = added_by_id_.find(id);
  return found == added_by_id_.end() ? nullptr : &added_tokens_[found->second];
}

std::optional<int32_t> TokenizerModel::id_of(std::string_view token) const {
  if (const auto found = added_by_content_.find(std::string(token)); found != added_by_content_.end()) {
    return found->second;
  }
  if (const int32_t id = bpe_.tokens().find(token); id != kNoToken) return id;
  return std::nullopt;
}

bool TokenizerModel::is_special_text(std::string_view token) const {
  const auto found = added_by_content_.find(std::string(token));
  return found != added_by_content_.end() && added_token(found->second)->special;
}

bool TokenizerModel::is_byte_level() const {
  return std::any_of(decoder_.begin(), decoder_.end(),
                     [](const DecoderStep& step) { return step.kind == DecoderStep::Kind::kByteLevel; });
}

}  // namespace deltatrain::text
