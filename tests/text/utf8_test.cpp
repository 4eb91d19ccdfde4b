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

// What is in the middle of a text is judged sixteen bytes at a time, what is near its end byte by byte.
TEST(Utf8Test, FindsTheSameInTheMiddleOfATextAsAtItsEnd) {
  const std::string behind(20, 'b');
  const auto expect_same = [&](const std::string& part, const std::string& before) {
    const size_t at_end = find_ill_formed_utf8(part + "b");
    const size_t want = at_end == std::string::npos ? at_end : before.size() + at_end;
    ASSERT_EQ(find_ill_formed_utf8(before + part + behind), want) << testing::PrintToString(part);
  };
  const std::string other = "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x91\x8d";  // of two, three and four bytes
  for (unsigned first = 0x80; first < 0x100; ++first) {
    for (unsigned second = 0; second < 0x100; ++second) {
      const std::string two = {static_cast<char>(first), static_cast<char>(second)};
      for (const unsigned third : {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xe2}) {
        for (const unsigned fourth : {0x7f, 0x80, 0xbf, 0xc0}) {
          const std::string part = two + static_cast<char>(third) + static_cast<char>(fourth);
          expect_same(part, std::string((first + second) % 37, 'a'));
          expect_same(part, "a" + other + other);
        }
      }
    }
  }
  for (size_t at = 0; at < 80; ++at) {
    std::string text;
    while (text.size() < at) text += at - text.size() < other.size() ? "a" : other;
    EXPECT_EQ(find_ill_formed_utf8(text + "\xe2\x82"), at);
    EXPECT_EQ(find_ill_formed_utf8(text + "\xe2\x82" + behind), at);
    EXPECT_EQ(find_ill_formed_utf8(text + other + behind), std::string::npos);
  }
}

TEST(Utf8Test, EveryScalarValueComesBack) {
  for (uint32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    append_utf8(c, text);
    ASSERT_EQ(find_ill_formed_utf8(text), std::string::npos);
    ASSERT_EQ(find_ill_formed_utf8(text + "0123456789abcdef"), std::string::npos);
    const char* p = text.data();
    ASSERT_EQ(next_code_point(p), c);
    ASSERT_EQ(p, text.data() + text.size());
  }
}

}  // namespace
}  // namespace deltatrain::text
