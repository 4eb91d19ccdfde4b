#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "text/unicode.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

// \w and \s of the reference's matching of added tokens.
bool is_word_character(const CodePoints& code_points, uint32_t c) {
  return code_points.is_alphabetic(c) || code_points.is_mark(c) ||
         code_points.category(c) == Category::kNd || code_points.category(c) == Category::kPc || c == 0x200c ||
         c == 0x200d;
}

// Start of the character that ends at `end` > 0.
size_t previous_character(std::string_view text, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) --i;
  return i;
}

uint32_t code_point_at(std::string_view text, size_t offset) {
  const char* p = text.data() + offset;
  return next_code_point(p);
}

}  // namespace

int64_t AddedTokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  uint32_t node = 0;
  for (const char c : pattern) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [child, is_new] = children_.try_emplace(key, static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = child->second;
  }
  if (token_at_[node] >= 0) return token_at_[node];
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  const auto first = static_cast<unsigned char>(pattern[0]);
  if (!starts_[first]) {
    starts_[first] = true;
    ++num_starts_;
    only_start_ = first;
  }
  if (pattern.size() == 1) {
    for (size_t second = 0; second < 256; ++second) starts_two_.set(static_cast<size_t>(first) << 8 | second);
  } else {
    starts_two_.set(static_cast<size_t>(first) << 8 | static_cast<unsigned char>(pattern[1]));
  }
  return -1;
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, Match* match) const {
  const size_t size = text.size();
  for (size_t i = from; i < size; ++i) {
    if (num_starts_ == 1) {
      const void* at = std::memchr(text.data() + i, only_start_, size - i);
      if (at == nullptr) return false;
      i = static_cast<size_t>(static_cast<const char*>(at) - text.data());
    } else if (!starts_[static_cast<unsigned char>(text[i])]) {
      continue;
    }
    const size_t second = i + 1 < size ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (!starts_two_[static_cast<size_t>(static_cast<unsigned char>(text[i])) << 8 | second]) continue;
    uint32_t node = 0;
    match->token = -1;
    for (size_t j = i; j < size; ++j) {
      const auto child =
          children_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(text[j]));
      if (child == children_.end()) break;
      node = child->second;
      if (token_at_[node] >= 0) *match = {i, j + 1, token_at_[node]};
    }
    if (match->token >= 0) return true;
  }
  return false;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Segment>& segments) const {
  const CodePoints code_points;
  size_t done = 0;    // end of what has been cut off
  size_t search = 0;  // matches are looked for from here, whatever was stripped
  Match match{0, 0, -1};
  while (!tokens_.empty() && find(text, search, &match)) {
    search = match.end;
    const AddedToken& token = tokens_[match.token];
    size_t begin = match.begin, end = match.end;
    if (token.single_word) {
      const bool left = begin > 0 && is_word_character(code_points, code_point_at(text, previous_character(text, begin)));
      const bool right = end < text.size() && is_word_character(code_points, code_point_at(text, end));
      if (left || right) continue;
    }
    if (token.lstrip) {
      while (begin > 0) {
        const size_t before = previous_character(text, begin);
        if (!code_points.is_white_space(code_point_at(text, before))) break;
        begin = before;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size() && code_points.is_white_space(code_point_at(text, end))) {
        const char* p = text.data() + end;
        next_code_point(p);
        end = static_cast<size_t>(p - text.data());
      }
    }
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
}

}  // namespace deltatrain::text
