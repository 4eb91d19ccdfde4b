#include "serve/text_stream.h"

#include <algorithm>

#include "text/case_mapping.h"  // num_code_points

namespace deltatrain::serve {

namespace {

// Bytes at the end of `text` that `stop` may begin with.
size_t overlap(std::string_view text, std::string_view stop) {
  size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && !text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

PromptText prompt_text(const text::Tokenizer& tokenizer, std::span<const int32_t> ids) {
  PromptText result;
  text::StreamDecoder decoder(tokenizer, text::SkipSpecialTokens::kNo);
  int64_t characters = 0;
  for (const int32_t id : ids) {
    result.offsets.push_back(characters);
    const std::string piece = decoder.append(id);
    characters += text::num_code_points(piece);
    result.text += piece;
  }
  return result;
}

TextStream::TextStream(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer),
      decoder_(tokenizer, text::SkipSpecialTokens::kNo),
      stop_strings_(std::move(stop_strings)) {
  size_t settled = 0;
  for (const int32_t id : prompt) settled += decoder_.append(id).size();
  const std::string whole = tokenizer.decode(prompt, text::SkipSpecialTokens::kNo);
  if (settled < whole.size()) held_prompt_ = whole.substr(settled);
}

std::string TextStream::append(int32_t id, bool is_silent) {
  if (is_stopped_ || is_silent || tokenizer_.is_special(id)) return "";
  std::string piece = decoder_.append(id);
  if (piece.empty()) return "";
  held_prompt_.clear();
  num_characters_ += text::num_code_points(piece);
  return release(piece, false);
}

std::string TextStream::finish() {
  if (is_stopped_) return "";
  std::string piece = decoder_.finish();
  if (!held_prompt_.empty() && piece.starts_with(held_prompt_)) {
    rest_of_prompt_ = held_prompt_;
    piece.erase(0, held_prompt_.size());
  }
  num_characters_ += text::num_code_points(piece);
  return release(piece, true);
}

std::string TextStream::release(const std::string& text, bool is_last) {
  held_ += text;
  size_t end = std::string::npos;
  for (const std::string& stop : stop_strings_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    is_stopped_ = true;
    std::string before = held_.substr(0, end);
    held_.clear();
    return before;
  }
  size_t kept = 0;
  if (!is_last) {
    for (const std::string& stop : stop_strings_) kept = std::max(kept, overlap(held_, stop));
  }
  // Not inside of a character.
  size_t cut = held_.size() - kept;
  while (cut > 0 && cut < held_.size() && (static_cast<unsigned char>(held_[cut]) & 0xC0U) == 0x80U)
    --cut;
  std::string settled = held_.substr(0, cut);
  held_.erase(0, cut);
  return settled;
}

}  // namespace deltatrain::serve
