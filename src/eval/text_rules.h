// What the harness's tasks do to the texts of their documents before a model sees them.
//
// Texts are well-formed UTF-8, characters are code points. Source: the behaviour of
// lm-evaluation-harness 0.4.13, checked on invented documents (tests/golden/eval).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::eval {

// HellaSwag: white space at the ends goes, " [title]" becomes ". ", brackets and what is in them
// go, pairs of blanks become one blank in a single pass.
std::string clean_hellaswag(std::string_view text);

// WikiText: undoes the spacing of its tokenizer (" @-@ ", " , ", "( a )", ...).
std::string detokenize_wikitext(std::string_view page);
// Words of a WikiText page as it stands: runs of white space, plus one.
int64_t count_wikitext_words(std::string_view page);

// RACE: one question of an article's list.
struct RaceProblem {
  std::string question;
  std::string answer;  // "A" to "D"
  std::vector<std::string> options;
};

// The list as Python prints it. `where` names file and document for the FormatError that anything
// else gives.
std::vector<RaceProblem> parse_race_problems(std::string_view literal, const std::string& where);

// The article with all its questions but the last answered. `version` 3; 2 is what releases up to
// 0.4.11 made of questions with a blank to fill.
std::string race_context(std::string_view article, const std::vector<RaceProblem>& problems,
                         int version);

}  // namespace deltatrain::eval
