#include "eval/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "eval/metrics.h"
#include "eval/text_rules.h"

namespace deltatrain::eval {
namespace {

using ::testing::HasSubstr;

template <class Error, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

std::vector<Task> find(std::vector<std::string> names) { return find_tasks(names); }

TEST(TasksTest, MmluHas57SubjectsAnd14042Documents) {
  const std::vector<Task> tasks = find({"mmlu"});
  EXPECT_EQ(tasks.size(), 57U);
  int64_t total = 0;
  for (const Task& task : tasks) total += task.num_documents;
  EXPECT_EQ(total, 14042);
  EXPECT_EQ(find({"mmlu_stem"}).size(), 19U);
  EXPECT_EQ(find({"mmlu_other"}).size(), 13U);
  EXPECT_EQ(find({"mmlu_social_sciences"}).size(), 12U);
  EXPECT_EQ(find({"mmlu_humanities"}).size(), 13U);
}

TEST(TasksTest, NamesAreGroupsTagsAndPatterns) {
  EXPECT_EQ(find({"ai2_arc"}).size(), 2U);
  EXPECT_EQ(find({"arc_*"}).size(), 2U);
  EXPECT_EQ(find({"piqa", "winogrande"}).at(1).name, "winogrande");
  EXPECT_THAT(message_of<ConfigError>([] { find({"helaswag"}); }),
              HasSubstr("did you mean hellaswag?"));
  EXPECT_THAT(message_of<ConfigError>([] {
                find({"arc_easy", "ai2_arc"});
              }),
              HasSubstr("arc_easy twice"));
}

TEST(TasksTest, SaysWhichColumnIsMissingOrWrong) {
  const auto question = [](const char* task, const char* document) {
    Json json = Json::parse(document);
    make_question(find({task}).at(0), json, "d.jsonl:7");
  };
  EXPECT_EQ(
      message_of<FormatError>([&] { question("piqa", R"({"goal":"g","sol1":"a","label":0})"); }),
      "d.jsonl:7: columns: expected sol2 among them, got goal, sol1, label");
  EXPECT_EQ(message_of<FormatError>(
                [&] { question("piqa", R"({"goal":1,"sol1":"a","sol2":"b","label":0})"); }),
            "d.jsonl:7: goal: expected a string, got number");
  EXPECT_EQ(message_of<FormatError>(
                [&] { question("piqa", R"({"goal":"g","sol1":"a","sol2":"b","label":2})"); }),
            "d.jsonl:7: label: expected a whole number from 0 to 1, got 2");
  EXPECT_THAT(message_of<FormatError>([&] {
                question(
                    "arc_easy",
                    R"({"question":"q","choices":{"text":["a"],"label":["A"]},"answerKey":"B"})");
              }),
              HasSubstr("expected one of the labels, got \"B\""));
  EXPECT_THAT(message_of<FormatError>(
                  [&] { question("race", R"({"article":"a","problems":"[{'question': 1}]"})"); }),
              HasSubstr("expected a string, got \"1\""));
  EXPECT_THAT(
      message_of<FormatError>([&] { question("race", R"({"article":"a","problems":"[]"})"); }),
      HasSubstr("one question or more"));
  EXPECT_THAT(message_of<FormatError>([&] {
                question("winogrande",
                         R"({"sentence":"s","option1":"a","option2":"b","answer":""})");
              }),
              HasSubstr("underscore"));
}

TEST(TextRulesTest, PythonEscapesOfEveryKind) {
  const std::string literal =
      R"([{"options": ['a\x41', 'b\u00e9\U0001F600', 'c\101\q', "d\'\"\n\\"], 'answer': "A", 'question' : 'it''s'}])";
  EXPECT_THROW(parse_race_problems(literal, "x"),
               FormatError);  // adjacent strings are no single string here
  const auto problems = parse_race_problems(
      R"([{"options": ['a\x41', 'b\u00e9\U0001F600', 'c\101\q', "d\'\"\n\\"], 'answer': "A", 'question' : 'q'}])",
      "x");
  EXPECT_EQ(problems.at(0).options,
            (std::vector<std::string>{"aA", "b\u00e9\U0001f600", "cA\\q", "d'\"\n\\"}));
  for (const char* broken :
       {"", "[", "[{]", "[{'question': 'a", "[{'question': '\\ud800'}]", "[{'question': '\\x4'}]"})
    EXPECT_THROW(parse_race_problems(broken, "x"), FormatError) << broken;
}

// Digits as CPython 3.11's repr() prints them.
TEST(MetricsTest, NumbersArePrintedAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{1e-5, "1e-05"},
                                                  {1e-4, "0.0001"},
                                                  {1e16, "1e+16"},
                                                  {123456789012345680.0, "1.2345678901234568e+17"},
                                                  {9999999999999998.0, "9999999999999998.0"},
                                                  {-62, "-62.0"},
                                                  {0.1, "0.1"},
                                                  {-38.32745172013529, "-38.32745172013529"},
                                                  {1e-310, "1e-310"},
                                                  {-0.0, "-0.0"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(python_number(value), text);
}

}  // namespace
}  // namespace deltatrain::eval
