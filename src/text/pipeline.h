// The stages of a tokenizer around its vocabulary, as plain data, and what each does to a text.
//
// tokenizer_json.cpp fills them from tokenizer.json. The names are the file's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/word_splitter.h"

namespace deltatrain::text {

class Regex;

struct Match {
  size_t begin = 0, end = 0;
  bool is_match = true;  // false: the text between two matches
};

// A literal string, one of the word patterns with a matcher of its own, or any other regular expression.
struct Pattern {
  std::string text;
  bool is_literal = true;
  std::optional<WordPattern> word_pattern;
  std::shared_ptr<const Regex> regex;  // shared: copies of a pattern use one compiled expression

  // Matches and what lies between them, covering the text.
  std::vector<Match> find(std::string_view subject) const;
};

struct NormalizerStep {
  enum class Kind { kPrepend, kReplace, kStrip, kNfc, kNfd, kByteLevel };
  Kind kind = Kind::kPrepend;
  std::string content;    // Prepend, Replace
  Pattern pattern;        // Replace
  bool strip_left = false, strip_right = false;
};

// Applies the steps to the text.
void normalize(const std::vector<NormalizerStep>& steps, std::string& text);

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kFirst, kNever, kAlways };

struct PreTokenizerStep {
  enum class Kind {
    kSplit, kByteLevel, kDigits, kPunctuation, kWhitespace, kWhitespaceSplit, kMetaspace, kCharDelimiterSplit,
  };
  Kind kind = Kind::kSplit;
  Pattern pattern;  // Split, CharDelimiterSplit
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false;  // ByteLevel
  bool use_regex = false;         // ByteLevel
  bool individual_digits = false;
  std::string replacement;  // Metaspace
  PrependScheme prepend_scheme = PrependScheme::kAlways;
  bool split = true;  // Metaspace
};

struct Pieces {
  struct Piece {
    size_t begin = 0, end = 0;
    bool at_start = false;  // starts where the whole text starts
  };
  std::string text;
  std::vector<Piece> pieces;  // none empty
};

// Applies the steps. With `keep_bytes` a ByteLevel step at the end leaves its pieces as raw bytes.
void pre_tokenize(const std::vector<PreTokenizerStep>& steps, bool keep_bytes, Pieces& pieces);

}  // namespace deltatrain::text
