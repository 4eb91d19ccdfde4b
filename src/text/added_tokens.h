// Tokens that are found in the text itself, before it is cut into words: special tokens and tokens added
// to a finished vocabulary.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace deltatrain::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;       // and on its right
  bool normalized = false;   // looked for in the normalized text
  bool special = false;
  std::string pattern;  // what stands for it in the text; empty: the content, normalized if `normalized`
};

// A stretch of text: the added token `id`, or plain text if id is kNoToken.
struct Segment {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

// Finds the leftmost and there the longest of a set of strings.
class AddedTokenMatcher {
 public:
  // `patterns[i]` is what stands for `tokens[i]` in the text. Returns the index of a pattern that
  // appeared before, or -1.
  int64_t add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Appends the segments that cover the text, without empty ones.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  struct Match {
    size_t begin, end;
    int32_t token;
  };
  bool find(std::string_view text, size_t from, Match* match) const;

  std::vector<AddedToken> tokens_;
  std::vector<int32_t> token_at_{-1};                // by node of the trie: what ends here
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte
  std::array<bool, 256> starts_{};
  std::bitset<65536> starts_two_;  // first two bytes; all pairs for patterns of one byte
  int num_starts_ = 0;
  unsigned char only_start_ = 0;
};

}  // namespace deltatrain::text
