#include "text/case_mapping.h"

#include <gtest/gtest.h>

#include <string>

#include "base/hash.h"
#include "text/utf8.h"

namespace deltatrain::text {
namespace {

// The digest of what CPython 3.11's str.capitalize() gives for every code point alone, after a
// letter, and around capital sigmas.
TEST(CaseMappingTest, CapitalizeEqualsPythonsOnEveryCodePoint) {
  Sha256 digest;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string x;
    append_utf8(c, x);
    for (const std::string& text :
         {x, "a" + x, "a\u03a3" + x, "a" + x + "\u03a3b", "a" + x + "\u03a3"}) {
      const std::string line = capitalize(text) + "\n";
      digest.update(line.data(), line.size());
    }
  }
  EXPECT_EQ(digest.hex(), "5533bb35948b4d355649fb6d5b0ccd0a8955414ba3379d00adf30250bea53b4f");
}

TEST(CaseMappingTest, StripTakesPythonsWhiteSpaceOnly) {
  EXPECT_EQ(strip("\u00a0\u2003\x1c a\u200b b\u3000\n"), "a\u200b b");
  EXPECT_EQ(strip_front(" a "), "a ");
  EXPECT_EQ(strip_back(" a "), " a");
  EXPECT_EQ(strip(" \t"), "");
  EXPECT_EQ(strip("\ufeff"), "\ufeff");
}

TEST(CaseMappingTest, CountsCodePoints) {
  EXPECT_EQ(num_code_points(""), 0);
  EXPECT_EQ(num_code_points("a\u00e9\u2603\U0001f600"), 4);
}

}  // namespace
}  // namespace deltatrain::text
