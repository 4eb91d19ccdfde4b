#include <functional>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/pipeline.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

const WordSplitter& word_splitter() {
  static const WordSplitter splitter;
  return splitter;
}

template <WordPattern pattern>
void find_words(std::string_view text, std::vector<Match>& matches) {
  const WordSplitter& splitter = word_splitter();
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* q = splitter.next<pattern>(p, end);
    matches.push_back({static_cast<size_t>(p - text.data()), static_cast<size_t>(q - text.data()), true});
    p = q;
  }
}

// Every character for which `test` holds is a match of its own.
std::vector<Match> find_characters(std::string_view text, const std::function<bool(uint32_t)>& test) {
  std::vector<Match> matches;
  size_t done = 0;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const auto begin = static_cast<size_t>(p - text.data());
    const uint32_t c = next_code_point(p);
    if (!test(c)) continue;
    if (done < begin) matches.push_back({done, begin, false});
    done = static_cast<size_t>(p - text.data());
    matches.push_back({begin, done, true});
  }
  if (done < text.size()) matches.push_back({done, text.size(), false});
  return matches;
}

// Joins matches with what lies between them as the behaviour says; `removed` ones have begin == end.
std::vector<Match> apply_behavior(std::vector<Match> matches, SplitBehavior behavior) {
  std::vector<Match> result;
  result.reserve(matches.size());
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return matches;
    case SplitBehavior::kRemoved:
      for (const Match& match : matches) {
        if (!match.is_match) result.push_back(match);
      }
      return result;
    case SplitBehavior::kContiguous: {
      bool previous = false;
      for (const Match& match : matches) {
        if (match.is_match == previous && !result.empty()) {
          result.back().end = match.end;
        } else {
          result.push_back(match);
        }
        previous = match.is_match;
      }
      return result;
    }
    case SplitBehavior::kMergedWithPrevious: {
      bool previous = false;
      for (const Match& match : matches) {
        if (match.is_match && !previous && !result.empty()) {
          result.back().end = match.end;
        } else {
          result.push_back(match);
        }
        previous = match.is_match;
      }
      return result;
    }
    case SplitBehavior::kMergedWithNext: {
      bool previous = false;
      for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
        if (match->is_match && !previous && !result.empty()) {
          result.back().begin = match->begin;
        } else {
          result.push_back(*match);
        }
        previous = match->is_match;
      }
      return {result.rbegin(), result.rend()};
    }
  }
  return result;
}

void invert(std::vector<Match>& matches) {
  for (Match& match : matches) match.is_match = !match.is_match;
}

using Splitter = std::function<std::vector<Match>(std::string_view)>;

// Cuts every piece as `splitter` says.
void split_pieces(Pieces& pieces, const Splitter& splitter) {
  std::vector<Pieces::Piece> result;
  for (const Pieces::Piece& piece : pieces.pieces) {
    const auto text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
    for (const Match& match : splitter(text)) {
      if (match.begin == match.end) continue;
      result.push_back({piece.begin + match.begin, piece.begin + match.end, piece.at_start && match.begin == 0});
    }
  }
  pieces.pieces = std::move(result);
}

// Replaces the text of every piece.
void map_pieces(Pieces& pieces, const std::function<void(const Pieces::Piece&, std::string_view, std::string&)>& map) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (Pieces::Piece& piece : pieces.pieces) {
    const size_t begin = text.size();
    map(piece, std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), text);
    piece.begin = begin;
    piece.end = text.size();
  }
  pieces.text = std::move(text);
}

Splitter characters(SplitBehavior behavior, std::function<bool(uint32_t)> test) {
  return [behavior, test = std::move(test)](std::string_view text) {
    return apply_behavior(find_characters(text, test), behavior);
  };
}

void byte_level(const PreTokenizerStep& step, bool keep_bytes, Pieces& pieces) {
  if (step.add_prefix_space) {
    map_pieces(pieces, [](const Pieces::Piece&, std::string_view piece, std::string& text) {
      if (!piece.starts_with(' ')) text += ' ';
      text += piece;
    });
  }
  if (step.use_regex) {
    split_pieces(pieces, [](std::string_view text) {
      std::vector<Match> matches;
      find_words<WordPattern::kGpt2>(text, matches);
      return matches;
    });
  }
  if (keep_bytes) return;
  map_pieces(pieces, [](const Pieces::Piece&, std::string_view piece, std::string& text) {
    for (const char c : piece) append_utf8(byte_to_printable(static_cast<uint8_t>(c)), text);
  });
}

void metaspace(const PreTokenizerStep& step, Pieces& pieces) {
  map_pieces(pieces, [&](const Pieces::Piece& source, std::string_view piece, std::string& text) {
    const bool marked = piece.starts_with(' ') || piece.starts_with(step.replacement);
    const bool wanted = step.prepend_scheme == PrependScheme::kAlways ||
                        (step.prepend_scheme == PrependScheme::kFirst && source.at_start);
    if (wanted && !marked) text += step.replacement;
    for (const char c : piece) {
      if (c == ' ') {
        text += step.replacement;
      } else {
        text += c;
      }
    }
  });
  if (!step.split) return;
  const char* p = step.replacement.data();
  const uint32_t mark = next_code_point(p);
  split_pieces(pieces, characters(SplitBehavior::kMergedWithNext, [mark](uint32_t c) { return c == mark; }));
}

bool is_ascii_punctuation(uint32_t c) {
  return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) || (c >= 0x7b && c <= 0x7e);
}

// \w of the reference's "Whitespace" component.
bool is_word(const CodePoints& code_points, uint32_t c) {
  return code_points.is_alphabetic(c) || code_points.is_mark(c) || code_points.category(c) == Category::kNd ||
         code_points.category(c) == Category::kPc || c == 0x200c || c == 0x200d;
}

// Matches of \w+|[^\w\s]+ are kept, white space is dropped.
std::vector<Match> words_and_symbols(std::string_view text) {
  const CodePoints code_points;
  std::vector<Match> matches;
  int previous = 0;  // 0 white space, 1 word, 2 symbol
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const auto begin = static_cast<size_t>(p - text.data());
    const uint32_t c = next_code_point(p);
    const auto behind = static_cast<size_t>(p - text.data());
    const int kind = is_word(code_points, c) ? 1 : code_points.is_white_space(c) ? 0 : 2;
    if (kind != 0) {
      if (kind == previous) {
        matches.back().end = behind;
      } else {
        matches.push_back({begin, behind, true});
      }
    }
    previous = kind;
  }
  return matches;
}

}  // namespace

std::vector<Match> Pattern::find(std::string_view subject) const {
  std::vector<Match> matches;
  if (word_pattern) {
    switch (*word_pattern) {
      case WordPattern::kGpt2:
        find_words<WordPattern::kGpt2>(subject, matches);
        break;
      case WordPattern::kLlama3:
        find_words<WordPattern::kLlama3>(subject, matches);
        break;
      case WordPattern::kQwen2:
        find_words<WordPattern::kQwen2>(subject, matches);
        break;
    }
    return matches;
  }
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (done < begin) matches.push_back({done, begin, false});
    matches.push_back({begin, end, true});
    done = end;
  };
  if (!is_literal) {
    DELTATRAIN_CHECK(regex != nullptr, text);
    regex->find_all(subject, add);
  } else {
    for (size_t at = subject.find(text); at != std::string_view::npos && !text.empty(); at = subject.find(text, done)) {
      add(at, at + text.size());
    }
  }
  if (done < subject.size()) matches.push_back({done, subject.size(), false});
  return matches;
}

void pre_tokenize(const std::vector<PreTokenizerStep>& steps, bool keep_bytes, Pieces& pieces) {
  const CodePoints code_points;
  for (size_t i = 0; i < steps.size(); ++i) {
    const PreTokenizerStep& step = steps[i];
    switch (step.kind) {
      case PreTokenizerStep::Kind::kSplit:
      case PreTokenizerStep::Kind::kCharDelimiterSplit:
        split_pieces(pieces, [&](std::string_view text) {
          std::vector<Match> matches = step.pattern.find(text);
          if (step.invert) invert(matches);
          return apply_behavior(std::move(matches), step.behavior);
        });
        break;
      case PreTokenizerStep::Kind::kByteLevel:
        byte_level(step, keep_bytes && i + 1 == steps.size(), pieces);
        break;
      case PreTokenizerStep::Kind::kDigits:
        split_pieces(pieces, characters(step.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                                        [&](uint32_t c) { return code_points.is_number_17(c); }));
        break;
      case PreTokenizerStep::Kind::kPunctuation:
        split_pieces(pieces, characters(step.behavior, [&](uint32_t c) {
                       return is_ascii_punctuation(c) || code_points.is_punctuation_8(c);
                     }));
        break;
      case PreTokenizerStep::Kind::kWhitespace:
        split_pieces(pieces, words_and_symbols);
        break;
      case PreTokenizerStep::Kind::kWhitespaceSplit:
        split_pieces(pieces, characters(SplitBehavior::kRemoved, [&](uint32_t c) { return code_points.is_white_space(c); }));
        break;
      case PreTokenizerStep::Kind::kMetaspace:
        metaspace(step, pieces);
        break;
    }
  }
}

}  // namespace deltatrain::text
