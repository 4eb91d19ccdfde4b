#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include "base/error.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

std::string error_message(int code) {
  unsigned char buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::State {
  std::string source;
  pcre2_code* code = nullptr;
};

Regex::Regex(std::string_view oniguruma) : state_(std::make_unique<State>()) {
  state_->source = oniguruma;
  const std::string pattern = translate_regex(oniguruma);
  int error = 0;
  PCRE2_SIZE offset = 0;
  state_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (state_->code == nullptr) {
    throw FormatError("regular expression \"" + state_->source + "\": " + error_message(error));
  }
  // Without JIT support the interpreter does the same, slower.
  pcre2_jit_compile(state_->code, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() { pcre2_code_free(state_->code); }

void Regex::find_all(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(state_->code, nullptr), pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t at = 0;
  size_t last_end = std::string_view::npos;
  while (at <= text.size()) {
    int result = pcre2_match(state_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      // Compiled code ran out of its small stack; the interpreter keeps its state on the heap.
      result = pcre2_match(state_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                           nullptr);
    }
    if (result == PCRE2_ERROR_NOMATCH) return;
    if (result < 0) {
      throw FormatError("regular expression \"" + state_->source + "\": byte " + std::to_string(at) + " of a text of " +
                        std::to_string(text.size()) + ": " + error_message(result));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const size_t begin = range[0], end = range[1];
    if (begin == end && begin == last_end) {
      if (at >= text.size()) return;
      const char* p = text.data() + at;
      next_code_point(p);
      at = static_cast<size_t>(p - text.data());
      continue;
    }
    found(begin, end);
    at = end;
    last_end = end;
  }
}

}  // namespace deltatrain::text
