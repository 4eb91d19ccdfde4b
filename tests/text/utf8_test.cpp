#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace deltatrain::text {
namespace {

// Expected: bytes.decode("utf-8", errors="replace") of CPython 3.11.
TEST(Utf8Test, ReplacesEachMaximalIllFormedPartAsPythonDoes) {
  const struct {
    std::string bytes, expected;
    int64_t parts;
  } cases[] = {
      {"plain ascii, longer than a word", "plain ascii, longer than a word", 0},
      {"\xc3(", "\xef\xbf\xbd(", 1},
      {"\xf5", "\xef\xbf\xbd", 1},
      {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd", 2},
      {"\xed\xa0\xbd", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
      {"\xe2\x82", "\xef\xbf\xbd", 1},
      {"\xf0\x9f\x91x", "\xef\xbf\xbdx", 1},
      {"\xf0\x9f\x91\x8d", "\xf0\x9f\x91\x8d", 0},
      {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 4},
      {"\xe0\x9f\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
  };
  for (const auto& item : cases) {
    int64_t parts = 0;
    EXPECT_EQ(replace_ill_formed_utf8(item.bytes, &parts), item.expected);
    EXPECT_EQ(parts, item.parts) << item.expected;
    EXPECT_EQ(find_ill_formed_utf8(item.bytes) == std::string::npos, item.parts == 0);
  }
}

TEST(Utf8Test, FindsTheOffsetBehindALongWellFormedStart) {
  EXPECT_EQ(find_ill_formed_utf8("0123456789\xc3\xa9" "abcdefgh\xff"), 20U);
  EXPECT_EQ(find_ill_formed_utf8("0123456789\xff" "abc\xff", 11), 14U);
}

TEST(Utf8Test, EveryScalarValueComesBack) {
  for (uint32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    append_utf8(c, text);
    ASSERT_EQ(find_ill_formed_utf8(text), std::string::npos);
    const char* p = text.data();
    ASSERT_EQ(next_code_point(p), c);
    ASSERT_EQ(p, text.data() + text.size());
  }
}

}  // namespace
}  // namespace deltatrain::text
