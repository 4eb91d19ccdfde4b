// What the readers make of one line of JSON. Expected outcomes are Python's json module's (but for zero bytes and depth,
// which it limits elsewhere), texts too.
#include "prepare/json_field.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace deltatrain::prepare {
namespace {

using Outcome = JsonField::Outcome;

struct Reader {
  const char* name;
  std::unique_ptr<JsonFieldReader> (*make)();
};

// What is behind a line would end a string of it.
std::string padded(std::string_view line) {
  return std::string(line) + std::string(kJsonPadding, '"');
}

class JsonFieldTest : public testing::TestWithParam<Reader> {
 protected:
  JsonField read(std::string_view line, std::string_view key = "text") {
    memory_ = padded(line);
    return reader_->read(std::string_view(memory_).substr(0, line.size()), key);
  }
  std::string text(std::string_view line) {
    const JsonField field = read(line);
    return field.outcome == Outcome::kText ? std::string(field.text) : "(no text) " + field.got;
  }

 private:
  std::unique_ptr<JsonFieldReader> reader_ = GetParam().make();
  std::string memory_;
};

TEST_P(JsonFieldTest, TextComesWithItsEscapesResolved) {
  EXPECT_EQ(text(R"({"text":"a"})"), "a");
  EXPECT_EQ(text(R"( { "x" : [1, {"text": "no"}, null] , "text" : "b\n\t\"\\\/\b\f\r" } )"),
            "b\n\t\"\\/\b\f\r");
  EXPECT_EQ(text(R"({"text":"\u00e9\ud83d\udc4d"})"), "\xc3\xa9\xf0\x9f\x91\x8d");
  EXPECT_EQ(text(R"({"te\u0078t":"escaped key"})"), "escaped key");
  EXPECT_EQ(text(R"({"text":"\u0000"})"), std::string(1, '\0'));
  EXPECT_EQ(text(R"({"text":""})"), "");
}

// Strings are read sixteen bytes at a time: what ends a run of plain characters stands at each place of a step.
TEST_P(JsonFieldTest, EscapesAndEndsAreFoundAtEveryPlace) {
  const std::pair<std::string, std::string> escapes[] = {{"\\n", "\n"},
                                                         {"\\\"", "\""},
                                                         {"\\\\\\\\", "\\\\"},
                                                         {"\\u00E9\\u00e9", "\xc3\xa9\xc3\xa9"},
                                                         {"\\ud83d\\udc4d", "\xf0\x9f\x91\x8d"},
                                                         {"\xc3\xa9", "\xc3\xa9"},
                                                         {"\x7f", "\x7f"}};
  for (size_t before = 0; before < 40; ++before) {
    const std::string plain(before, 'a');
    EXPECT_EQ(text("{\"text\":\"" + plain + "\"}"), plain);
    EXPECT_EQ(read("{\"text\":\"" + plain).outcome, Outcome::kBroken);
    EXPECT_EQ(read("{\"text\":\"" + plain + "\x1f\"}").outcome, Outcome::kBroken);
    EXPECT_EQ(read("{\"text\":\"" + plain + "\\").outcome, Outcome::kBroken);
    for (const auto& [escape, character] : escapes) {
      for (const size_t after : {0, 1, 15, 16, 17}) {
        const std::string rest(after, 'b');
        EXPECT_EQ(text("{\"" + plain + escape + "\":1,\"text\":\"" + plain + escape + rest + "\"}"),
                  plain + character + rest);
      }
    }
  }
}

TEST_P(JsonFieldTest, NumbersAreWhatTheGrammarAllows) {
  for (const std::string_view number :
       {"0", "-0", "10", "1.5", "0.25", "-1e5", "1E+05", "1e-05", "1e99", "1e100", "1e308",
        "1e-400", "123456789012345678901234567890.5e-12"}) {
    EXPECT_EQ(text("{\"n\":" + std::string(number) + ",\"text\":\"a\"}"), "a") << number;
  }
  for (const std::string_view number : {"", "-", "00", "-01", ".5", "1.", "1.e5", "1e", "1e+",
                                        "1e+-5", "--1", "0x10", "1e309", "-1e309", "Infinity"}) {
    EXPECT_EQ(read("{\"n\":" + std::string(number) + ",\"text\":\"a\"}").outcome, Outcome::kBroken)
        << number;
  }
  EXPECT_EQ(read("{\"text\":\"a\",\"n\":" + std::string(400, '9') + "}").outcome, Outcome::kBroken);
  EXPECT_EQ(read("{\"text\":\"a\",\"n\":1" + std::string(250, '0') + "e99}").outcome,
            Outcome::kBroken);
  EXPECT_EQ(text("{\"text\":\"a\",\"n\":1" + std::string(250, '0') + "e10}"), "a");
}

TEST_P(JsonFieldTest, TheLastOfEqualKeysCountsAndOnlyThoseOfTheOutermostObject) {
  EXPECT_EQ(text(R"({"text":"a","text":"b"})"), "b");
  EXPECT_EQ(text(R"({"text":{"text":"no"},"text":"b","x":{"text":"no"}})"), "b");
  EXPECT_EQ(read(R"({"text":"a","text":1})").outcome, Outcome::kNotText);
}

TEST_P(JsonFieldTest, EveryOtherOutcomeSaysWhatIsThere) {
  const auto expect = [&](std::string_view line, Outcome outcome, const std::string& got) {
    const JsonField field = read(line);
    EXPECT_EQ(field.outcome, outcome) << line;
    EXPECT_EQ(field.got, got) << line;
  };
  expect(R"({"a":1,"b":{"c":2}})", Outcome::kMissing, "a, b");
  expect("{}", Outcome::kMissing, "");
  expect(R"({"text":null})", Outcome::kNull, "null");
  expect(R"({"text":12.5e3})", Outcome::kNotText, "a number");
  expect(R"({"text":-7})", Outcome::kNotText, "a number");
  expect(R"({"text":true})", Outcome::kNotText, "a truth value");
  expect(R"({"text":["a"]})", Outcome::kNotText, "an array");
  expect(R"({"text":{"text":"a"}})", Outcome::kNotText, "an object");
  expect("[1]", Outcome::kNotAnObject, "an array");
  expect(R"([{"text":"a"}])", Outcome::kNotAnObject, "an array");
  expect("\"text\"", Outcome::kNotAnObject, "a string");
  expect("null", Outcome::kNotAnObject, "null");
  expect("3", Outcome::kNotAnObject, "a number");
}

TEST_P(JsonFieldTest, BrokenLinesAreBroken) {
  for (const std::string_view line :
       {R"({"text":"a")", R"({"text":"a})", R"({"text" "a"})", R"({"text":"a"} x)", "plain",
        R"({"text":"a","n":[1,2})", R"({"text":"a",})", R"({"text":"a","n":01})",
        R"({"text":"a","n":+1})", R"({"text":"a","n":1.})", R"({"text":"a","n":nan})",
        R"({'text':'a'})", R"({"text":"a"}{"text":"b"})", "{\"text\":\"a\tb\"}", R"({text:"a"})",
        R"({"text":"a","n":tru})"}) {
    EXPECT_EQ(read(line).outcome, Outcome::kBroken) << line;
    EXPECT_NE(read(line).got, "") << line;
  }
  EXPECT_EQ(read(std::string_view("{\"text\":\"a\"}\0", 13)).outcome, Outcome::kBroken);
  std::string deep(3000, '[');
  EXPECT_EQ(read("{\"text\":\"a\",\"n\":" + deep + std::string(3000, ']') + "}").outcome,
            Outcome::kBroken);
  EXPECT_EQ(text("{\"text\":\"a\",\"n\":" + std::string(1000, '[') + std::string(1000, ']') + "}"),
            "a");
}

TEST_P(JsonFieldTest, EscapesThatStandForNoCharacterAreToldApart) {
  for (const std::string_view line :
       {R"({"text":"\ud83d"})", R"({"text":"\udc4d a"})", R"({"text":"a","x":"\ud83d\u0041"})",
        R"({"text":"\x"})", R"({"text":"\u12g4"})"}) {
    EXPECT_EQ(read(line).outcome, Outcome::kBadString) << line;
  }
}

TEST_P(JsonFieldTest, IllFormedUtf8IsToldApart) {
  EXPECT_EQ(read("{\"text\":\"x\xc3(\"}").outcome, Outcome::kIllFormedUtf8);
  EXPECT_EQ(read("{\"text\":\"a\",\"x\":\"\xed\xa0\x80\"}").outcome, Outcome::kIllFormedUtf8);
}

// Two libraries judge these in different ways.
TEST_P(JsonFieldTest, EdgesAreTheSameInEveryBuild) {
  EXPECT_EQ(text(R"({"n":18446744073709551616,"text":"a"})"), "a");
  EXPECT_EQ(text(R"({"n":-9223372036854775809,"text":"a"})"), "a");
  EXPECT_EQ(read("{\"text\":\"abc\xc3").outcome, Outcome::kIllFormedUtf8);
  EXPECT_EQ(read("{\"text\":\"a\tb\xc3(\"}").outcome, Outcome::kIllFormedUtf8);
  EXPECT_EQ(read("\xef\xbb\xbf{\"text\":\"a\"}").outcome, Outcome::kBroken);
  for (const size_t depth : {1022, 1023, 1024, 1025}) {
    // The object itself is the first level.
    const std::string line = "{\"n\":" + std::string(depth - 1, '[') + "1" +
                             std::string(depth - 1, ']') + ",\"text\":\"a\"}";
    EXPECT_EQ(read(line).outcome, depth <= 1024 ? Outcome::kText : Outcome::kBroken) << depth;
  }
}

TEST_P(JsonFieldTest, ReadsOnAfterMemoryIsGivenBack) {
  const auto reader = GetParam().make();
  const std::string line = padded(R"({"text":"a"})");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(reader->read(std::string_view(line).substr(0, 12), "text").text, "a");
    reader->release();
  }
}

INSTANTIATE_TEST_SUITE_P(Readers, JsonFieldTest,
                         testing::Values(Reader{"chosen", make_json_field_reader},
                                         Reader{"scanning", make_scanning_json_field_reader},
                                         Reader{"plain", make_plain_json_field_reader}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// Objects at random, most of them with one character too many, too few or wrong. (In a build without simdjson the chosen
// reader is the scanning one.)
TEST(JsonFieldReadersTest, AgreeOnLinesAtRandom) {
  const std::vector<std::string> keys = {"\"text\"", "\"text\"", "\"x\"", "\"te\\u0078t\"", "\"\""};
  const std::vector<std::string> values = {
      "\"a\"",
      "\"\\ud83d\\udc4d\"",
      "\"\\n\\\\\"",
      "\"\xc3\xa9\"",
      "\"quite a few characters, then\\u00e9\\t\\\" and more\"",
      "1",
      "-2.5e1",
      "0",
      "true",
      "null",
      "[]",
      "[1,{\"text\":\"no\"}]",
      "{\"text\":2}"};
  const std::string characters = "{}[]:,\"\\u0d.e-+ tn\t";
  std::mt19937 random(5);
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  const auto is_fault = [](Outcome o) {
    return o == Outcome::kBroken || o == Outcome::kBadString || o == Outcome::kIllFormedUtf8;
  };
  const auto chosen = make_json_field_reader();
  const std::unique_ptr<JsonFieldReader> others[] = {make_scanning_json_field_reader(),
                                                     make_plain_json_field_reader()};
  int texts = 0, faults = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string line = "{";
    for (size_t fields = random() % 4; fields > 0; --fields)
      line += one_of(keys) + ":" + one_of(values) + (fields > 1 ? "," : "");
    line += "}";
    const size_t at = random() % line.size();
    switch (random() % 4) {
      case 0:
        line.erase(at, 1);
        break;
      case 1:
        line.insert(at, 1, one_of(characters));
        break;
      case 2:
        line[at] = one_of(characters);
        break;
      default:
        break;
    }
    const std::string memory = padded(line);
    const std::string_view view = std::string_view(memory).substr(0, line.size());
    const JsonField want = chosen->read(view, "text");
    for (const auto& other : others) {
      const JsonField got = other->read(view, "text");
      ASSERT_EQ(static_cast<int>(got.outcome), static_cast<int>(want.outcome)) << line;
      ASSERT_EQ(got.text, want.text) << line;
    }
    texts += want.outcome == Outcome::kText ? 1 : 0;
    faults += is_fault(want.outcome) ? 1 : 0;
  }
  EXPECT_GT(texts, 5000);
  EXPECT_GT(faults, 5000);
}

}  // namespace
}  // namespace deltatrain::prepare
