#include "serve/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::serve {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::vector<ChatMessage> kHello = {{"user", "Hi"}};

std::string render(const std::string& source, const std::vector<ChatMessage>& messages = kHello) {
  return ChatTemplate(source, "test", "<s>", "</s>").render(messages);
}

template <class Throw>
std::string message_of(Throw act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Expected: Jinja 3.1.6 (tests/golden/chat/generate.py).
TEST(ChatTemplateTest, RendersAsJinja) {
  const Json cases = Json::parse(read_file(test::golden_path("chat/rendered.json")));
  EXPECT_GE(cases.size(), 15U);
  for (const Json& golden : cases) {
    std::vector<ChatMessage> messages;
    for (const Json& message : golden.at("messages"))
      messages.push_back({message.at("role"), message.at("content")});
    const std::string source = golden.at("template");
    if (golden.contains("raises")) {
      EXPECT_THAT(message_of([&] { render(source, messages); }),
                  HasSubstr(golden.at("raises").get<std::string>()))
          << golden.at("name");
    } else {
      EXPECT_EQ(render(source, messages), golden.at("text").get<std::string>())
          << golden.at("name");
    }
  }
}

TEST(ChatTemplateTest, SourcesThatAreNotUnderstoodNameTheLine) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"a\n{% if x %}", "test: line 2: expected \"endif\", got the end of the template"},
      {"{{ x ", "test: line 1: expected \"}}\", got the end of the template"},
      {"\n\n{% include 'a' %}",
       "test: line 3: expected if, for, set, macro, generation, break or continue, got "
       "\"include\""},
      {"{{ 1 + }}", "test: line 1: expected an expression, got the end"},
      {"{{ a b }}", "test: line 1: expected the end of the statement, got \"b\""},
      {"{% for in x %}{% endfor %}", "test: line 1: expected \"in\", got \"x\""},
      {"{{ 'a\\q' }}", "test: line 1: expected one of the escapes"},
      {"{{ a ? b }}", "test: line 1: expected an expression, got \"?\""},
      {"a\n{{ 'M\xff' | lower }}",
       "test: line 2: expected UTF-8, got an ill-formed byte at offset 7"},
      {"{% endif %}", "test: line 1: expected if, for, set"}};
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(message_of([&] { ChatTemplate(source, "test", "", ""); }), HasSubstr(message))
        << source;
  }
}

TEST(ChatTemplateTest, WhatCannotBeCarriedOutIsTheRequestsError) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{{ x.y }}", "attribute y: expected a value that has it, got nothing"},
      {"{{ 1 | nothing }}", "filter: expected one that docs/serving.md lists, got nothing"},
      {"{{ 1 is strange }}", "test: expected one that docs/serving.md lists, got strange"},
      {"{{ 'a'.format(1) }}", "expected one that docs/serving.md lists, got format"},
      {"{{ open('/etc/passwd') }}", "function: expected one that docs/serving.md lists, got open"},
      {"{{ 'a' + 1 }}", "+: expected numbers, or two values of one kind, got string"},
      {"{{ 1 // 0 }}", "//: expected a divisor other than 0"},
      {"{{ 'x' | abs }}", "abs: expected a number, got string"},
      {"{{ none | abs }}", "abs: expected a number, got null"},
      {"{{ missing | abs }}", "abs: expected a number, got nothing"},
      {"{{ (-4294967296 * 2147483648) | abs }}", "abs: expected a result of 64 bits"},
      {"{{ (-4294967296 * 2147483648) // -1 }}", "//: expected a result of 64 bits"},
      {"{% set ns = namespace(x=10.0) %}{% for i in range(9) %}{% set ns.x = ns.x * ns.x %}{% "
       "endfor %}{{ ns.x | int }}",
       "int: expected a finite number"},
      {"{{ (10000000000.0 * 1000000000) | int }}", "int: expected a whole number of 64 bits"},
      {"{{ '9223372036854775808' | int }}", "int: expected a whole number of 64 bits"},
      {"{{ 'ff' | int(0, 16) }}", "int: expected base 10"},
      {"{{ 9223372036854775807 }}", ""},
      {"{% for m in 5 %}{% endfor %}", "loop: expected a list, a map or a string, got number"},
      {"{% set a, b = [1] %}", "a: expected 2 values"}};
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(message_of([&] { render(source); }), HasSubstr(message)) << source;
  }
}

// A template of a stranger's can neither hang nor fill the memory.
TEST(ChatTemplateTest, StepsAndSizesAreLimited) {
  for (const char* source :
       {"{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(9000) %}{% for j in range(9000) %}{{ i }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
        "endfor %}",
        "{{ 'a' * 1000000000000 }}", "{{ ('a' * 9999999).replace('a', 'b' * 9999999) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"}) {
    EXPECT_NE(message_of([&] { render(source); }), "") << source;
  }
  for (const std::string& source :
       {"{{ " + std::string(100000, '(') + "1", "{{ " + std::string(100000, '-') + "1 }}",
        "{{ 1" + std::string(50000, '+') + "}}", "{{ a" + std::string(100000, '[') + "}}"}) {
    EXPECT_NE(message_of([&] { render(source); }), "");
  }
  std::string nested;
  for (int i = 0; i < 10000; ++i) nested += "{% if true %}";
  EXPECT_NE(message_of([&] { render(nested); }), "");
}

TEST(ChatTemplateTest, IsFoundBesideTheTokenizer) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(ChatTemplate::load(folder.path(), "", ""));
  write_file_atomically(folder / "tokenizer_config.json", R"({"bos_token": "x"})");
  EXPECT_FALSE(ChatTemplate::load(folder.path(), "", ""));
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"chat_template": "config {{ bos_token }}"})");
  EXPECT_EQ(ChatTemplate::load(folder.path(), "<s>", "")->render(kHello), "config <s>");
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"chat_template": [{"name": "tool_use", "template": "no"},
                                              {"name": "default", "template": "listed"}]})");
  EXPECT_EQ(ChatTemplate::load(folder.path(), "", "")->render(kHello), "listed");
  write_file_atomically(folder / "chat_template.jinja", "own {{ messages[0].content }}");
  EXPECT_EQ(ChatTemplate::load(folder.path(), "", "")->render(kHello), "own Hi");
  std::filesystem::remove(folder / "chat_template.jinja");
  for (const char* bad : {R"({"chat_template": 5})", R"([])", "{", R"({"chat_template": [{}]})",
                          R"({"chat_template": [{"name": 1}]})"}) {
    write_file_atomically(folder / "tokenizer_config.json", bad);
    EXPECT_THAT(message_of([&] { ChatTemplate::load(folder.path(), "", ""); }),
                HasSubstr("tokenizer_config.json"))
        << bad;
  }
}

}  // namespace
}  // namespace deltatrain::serve
