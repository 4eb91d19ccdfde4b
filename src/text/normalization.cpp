#include "text/normalization.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

// Hangul syllables are computed: Unicode Standard, section 3.12.
constexpr uint32_t kSyllables = 0xac00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11a7;
constexpr uint32_t kNumLeading = 19, kNumVowels = 21, kNumTrailing = 28;
constexpr uint32_t kNumSyllables = kNumLeading * kNumVowels * kNumTrailing;

class Tables {
 public:
  Tables() : classes_(kNumCodePoints), uncertain_(kNumCodePoints) {
    using namespace internal;  // NOLINT(google-build-using-namespace): the tables' own
    for (int i = 0; i < kNumCombiningClassRanges; ++i) {
      const uint32_t begin = kCombiningClassRanges[i] >> 8;
      const uint32_t end = i + 1 < kNumCombiningClassRanges ? kCombiningClassRanges[i + 1] >> 8 : kNumCodePoints;
      const auto value = static_cast<uint8_t>(kCombiningClassRanges[i]);
      for (uint32_t c = begin; c < end; ++c) {
        classes_[c] = value;
        uncertain_[c] = value != 0;
      }
    }
    for (int i = 0; i < kNumDecompositions; ++i) {
      const Decomposition& entry = kDecompositions[i];
      const uint32_t c = entry.code_point & 0x7fffffff;
      decompositions_[c] = {c, entry.first, entry.second};
      if (entry.code_point != c) {
        compositions_[key(entry.first, entry.second)] = c;
        uncertain_[entry.second] = true;
      } else {
        uncertain_[c] = true;
      }
    }
    for (uint32_t c = kVowels; c < kVowels + kNumVowels; ++c) uncertain_[c] = true;
    for (uint32_t c = kTrailing + 1; c < kTrailing + kNumTrailing; ++c) uncertain_[c] = true;
  }

  uint8_t combining_class(uint32_t c) const { return classes_[c]; }
  bool uncertain(uint32_t c) const { return uncertain_[c]; }

  void decompose(uint32_t c, std::vector<uint32_t>& out) const {
    if (c - kSyllables < kNumSyllables) {
      const uint32_t index = c - kSyllables;
      out.push_back(kLeading + index / (kNumVowels * kNumTrailing));
      out.push_back(kVowels + index % (kNumVowels * kNumTrailing) / kNumTrailing);
      if (index % kNumTrailing != 0) out.push_back(kTrailing + index % kNumTrailing);
      return;
    }
    // Only the first part can have parts of its own; so the second ones wait, at most four deep.
    uint32_t waiting[8];
    int count = 0;
    for (auto found = decompositions_.find(c); found != decompositions_.end(); found = decompositions_.find(c)) {
      if (found->second.second != 0) waiting[count++] = found->second.second;
      c = found->second.first;
    }
    out.push_back(c);
    while (count > 0) out.push_back(waiting[--count]);
  }

  // The composite of two, or 0.
  uint32_t compose(uint32_t a, uint32_t b) const {
    if (a - kLeading < kNumLeading && b - kVowels < kNumVowels) {
      return kSyllables + ((a - kLeading) * kNumVowels + (b - kVowels)) * kNumTrailing;
    }
    if (a - kSyllables < kNumSyllables && (a - kSyllables) % kNumTrailing == 0 && b > kTrailing &&
        b < kTrailing + kNumTrailing) {
      return a + (b - kTrailing);
    }
    const auto found = compositions_.find(key(a, b));
    return found == compositions_.end() ? 0 : found->second;
  }

 private:
  static uint64_t key(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) << 32 | b; }

  std::vector<uint8_t> classes_;
  std::vector<bool> uncertain_;  // may stand otherwise in NFC, by itself or behind something
  std::unordered_map<uint32_t, internal::Decomposition> decompositions_;
  std::unordered_map<uint64_t, uint32_t> compositions_;
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

std::vector<uint32_t> decomposed(std::string_view text) {
  const Tables& t = tables();
  std::vector<uint32_t> out;
  out.reserve(text.size());
  const auto sort_marks = [&](size_t begin, size_t end) {
    if (end - begin < 2) return;
    std::stable_sort(out.begin() + static_cast<ptrdiff_t>(begin), out.begin() + static_cast<ptrdiff_t>(end),
                     [&](uint32_t a, uint32_t b) { return t.combining_class(a) < t.combining_class(b); });
  };
  const char* p = text.data();
  const char* const end = p + text.size();
  size_t run = 0;  // start of the marks at the end, which are put in order of their classes
  while (p < end) {
    const size_t before = out.size();
    t.decompose(next_code_point(p), out);
    for (size_t i = before; i < out.size(); ++i) {
      if (t.combining_class(out[i]) != 0) continue;
      sort_marks(run, i);
      run = i + 1;
    }
  }
  sort_marks(run, out.size());
  return out;
}

std::string encoded(const std::vector<uint32_t>& code_points, size_t bytes) {
  std::string text;
  text.reserve(bytes);
  for (const uint32_t c : code_points) append_utf8(c, text);
  return text;
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  const Tables& t = tables();
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    if (static_cast<unsigned char>(*p) < 0x80) {
      ++p;
    } else if (t.uncertain(next_code_point(p))) {
      return false;
    }
  }
  return true;
}

std::string to_nfd(std::string_view text) { return encoded(decomposed(text), text.size()); }

std::string to_nfc(std::string_view text) {
  if (is_surely_nfc(text)) return std::string(text);
  const Tables& t = tables();
  std::vector<uint32_t> c = decomposed(text);
  // Each character is joined to the last starter if nothing between them blocks it.
  size_t kept = 0;
  size_t starter = SIZE_MAX;
  int last_class = 0;  // of the last one kept behind the starter; -1 right behind it
  for (size_t i = 0; i < c.size(); ++i) {
    const uint32_t current = c[i];
    const int combining = t.combining_class(current);
    if (starter != SIZE_MAX && last_class < combining) {
      if (const uint32_t composite = t.compose(c[starter], current); composite != 0) {
        c[starter] = composite;
        continue;
      }
    }
    if (combining == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = combining;
    }
    c[kept++] = current;
  }
  c.resize(kept);
  return encoded(c, text.size());
}

}  // namespace deltatrain::text
