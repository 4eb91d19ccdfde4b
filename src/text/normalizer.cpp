#include "base/check.h"
#include "text/byte_level.h"
#include "text/normalization.h"
#include "text/pipeline.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

void strip(const NormalizerStep& step, std::string& text) {
  const CodePoints code_points;
  const char* begin = text.data();
  const char* const end = begin + text.size();
  // Ends of the first and the last character that stay.
  const char* first = begin;
  if (step.strip_left) {
    while (first < end) {
      const char* p = first;
      if (!code_points.is_white_space(next_code_point(p))) break;
      first = p;
    }
  }
  const char* last = end;
  if (step.strip_right) {
    while (last > first) {
      const char* p = last - 1;
      while ((static_cast<unsigned char>(*p) & 0xc0) == 0x80) --p;
      const char* q = p;
      if (!code_points.is_white_space(next_code_point(q))) break;
      last = p;
    }
  }
  text = std::string(first, last);
}

void replace(const NormalizerStep& step, std::string& text) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  for (const Match& match : step.pattern.find(text)) {
    if (match.is_match) {
      result += step.content;
    } else {
      result.append(text, match.begin, match.end - match.begin);
    }
  }
  text = std::move(result);
}

}  // namespace

void normalize(const std::vector<NormalizerStep>& steps, std::string& text) {
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kPrepend:
        if (!text.empty()) text.insert(0, step.content);
        break;
      case NormalizerStep::Kind::kReplace:
        replace(step, text);
        break;
      case NormalizerStep::Kind::kStrip:
        strip(step, text);
        break;
      case NormalizerStep::Kind::kNfc:
        if (!is_surely_nfc(text)) text = to_nfc(text);
        break;
      case NormalizerStep::Kind::kNfd:
        text = to_nfd(text);
        break;
      case NormalizerStep::Kind::kByteLevel:
        text = bytes_to_printable(text);
        break;
    }
  }
}

}  // namespace deltatrain::text
