// Every fact of tests/golden/eval, which the harness's own code gave for invented documents.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "eval/completions.h"
#include "eval/fewshot.h"
#include "eval/metrics.h"
#include "eval/python_random.h"
#include "eval/sample_hashes.h"
#include "eval/tasks.h"
#include "eval/text_rules.h"
#include "eval/tokens.h"
#include "support/test_files.h"
#include "text/case_mapping.h"

namespace deltatrain::eval {
namespace {

std::vector<Json> facts() {
  std::ifstream file(test::golden_path("eval/harness_facts.jsonl"));
  std::vector<Json> result;
  for (std::string line; std::getline(file, line);) result.push_back(Json::parse(line));
  return result;
}

Task task_named(const std::string& name) {
  return find_tasks(std::vector<std::string>{name}).at(0);
}

void expect_requests(const Json& want, const std::string& prefix, const Question& question) {
  ASSERT_EQ(question.num_requests(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(prefix + question.context(static_cast<int64_t>(i)), want[i].at("context"));
    EXPECT_EQ(question.continuation(static_cast<int64_t>(i)), want[i].at("continuation"));
  }
}

void expect_stderr(const std::optional<double>& got, const Json& want) {
  if (want.is_string()) {
    EXPECT_EQ(want, "N/A");
    EXPECT_FALSE(got.has_value());
    return;
  }
  ASSERT_TRUE(got.has_value());
  EXPECT_NEAR(*got, want.get<double>(), 1e-12 * std::fabs(want.get<double>()));
}

void check_document(const Json& fact) {
  const Task task = task_named(fact.at("task"));
  Json document = fact.at("doc");
  const Question question = make_question(task, document, "fact");
  const std::string prefix = task.description;
  expect_requests(fact.at("requests"), prefix, question);
  EXPECT_EQ(question.gold, fact.at("gold"));
  if (fact.at("choice_char_len").is_null()) {
    EXPECT_TRUE(question.choice_lengths.empty());
  } else {
    EXPECT_EQ(Json(question.choice_lengths), fact.at("choice_char_len"));
    for (int64_t i = 0; i < question.num_requests(); ++i)
      EXPECT_EQ(question.continuation(i),
                " " + fact.at("choices").at(static_cast<size_t>(i)).get<std::string>());
  }
  for (int64_t i = 0; i < question.num_requests(); ++i) {
    const SplitText split = split_text(prefix + question.context(i), question.continuation(i));
    EXPECT_EQ(split.context, fact.at("tokenize_as").at(static_cast<size_t>(i)).at("context"));
    EXPECT_EQ(split.whole, fact.at("tokenize_as").at(static_cast<size_t>(i)).at("whole"));
  }
  for (const Json& metric : fact.at("metrics")) {
    const auto scores = metric.at("loglikelihoods").get<std::vector<double>>();
    EXPECT_EQ(best_choice(scores) == question.gold ? 1.0 : 0.0, metric.at("expected").at("acc"))
        << metric;
    if (metric.at("expected").contains("acc_norm")) {
      EXPECT_EQ(
          best_choice_normalized(scores, question.choice_lengths) == question.gold ? 1.0 : 0.0,
          metric.at("expected").at("acc_norm"))
          << metric;
    }
    EXPECT_EQ(metric.at("expected").size(), task.metrics.size());
  }
  const SampleHashes hashes = hash_sample(document, prefix + question.context(0), question.target);
  EXPECT_EQ(hashes.document, fact.at("hashes").at("doc_hash"));
  EXPECT_EQ(hashes.prompt, fact.at("hashes").at("prompt_hash"));
  EXPECT_EQ(hashes.target, fact.at("hashes").at("target_hash"));
  if (fact.contains("processed")) {
    for (const auto& item : fact.at("processed").items())
      EXPECT_EQ(document.at(item.key()), item.value());
  }
  if (fact.contains("problems_parsed")) {
    const auto problems =
        parse_race_problems(fact.at("doc").at("problems").get<std::string>(), "fact");
    const Json& want = fact.at("problems_parsed");
    ASSERT_EQ(problems.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(problems[i].question, want[i].at("question"));
      EXPECT_EQ(problems[i].answer, want[i].at("answer"));
      EXPECT_EQ(Json(problems[i].options), want[i].at("options"));
    }
    Json again = fact.at("doc");
    EXPECT_EQ(make_question(task, again, "fact", 2).context(0), fact.at("context_task_version_2"));
  }
}

void check_random(const Json& fact) {
  PythonRandom random(fact.at("seed").get<uint64_t>());
  ASSERT_TRUE(fact.contains("getrandbits32") || fact.contains("randbelow"));
  if (fact.contains("getrandbits32")) {
    for (const Json& want : fact.at("getrandbits32")) EXPECT_EQ(random.bits(32), want);
  } else {
    const Json& below = fact.at("randbelow");
    for (const Json& want : below.at("values"))
      EXPECT_EQ(random.below(below.at("n").get<uint32_t>()), want);
  }
}

void check_sampler(const Json& fact) {
  PythonRandom random(fact.at("seed").get<uint64_t>());
  for (const Json& want : fact.at("draws"))
    EXPECT_EQ(
        Json(random.sample(fact.at("population").get<int64_t>(), fact.at("draw").get<int64_t>())),
        want);
}

void check_fewshot(const Json& fact, const std::vector<Json>& all) {
  const Task task = task_named(fact.at("task"));
  std::vector<Json> documents;
  for (const Json& other : all) {
    if (other.at("kind") == "doc" && other.at("task") == fact.at("task"))
      documents.push_back(other.at("doc"));
  }
  std::vector<Json> pool = documents;
  if (fact.at("pool").is_array() && fact.at("pool").size() > 0 && fact.at("pool")[0].is_object())
    pool = fact.at("pool").get<std::vector<Json>>();
  FewshotSampler sampler(task, pool, "pool", fact.at("num_fewshot").get<int64_t>(),
                         fact.at("seed").get<uint64_t>());
  size_t next = 0;
  for (const Json& result : fact.at("results")) {
    // Documents in between draw too.
    for (; next < result.at("doc_id").get<size_t>(); ++next)
      sampler.next_prefix(documents.at(next));
    Json document = documents.at(next++);
    const std::string prefix = task.description + sampler.next_prefix(document);
    expect_requests(result.at("requests"), prefix, make_question(task, document, "fact"));
  }
}

void check_aggregate(const Json& fact) {
  std::vector<double> values(fact.at("n").get<size_t>(), 0.0);
  std::fill_n(values.begin(), fact.at("ones").get<int64_t>(), 1.0);
  const Estimate got = mean(values);
  EXPECT_EQ(got.value, fact.at("mean").get<double>());
  expect_stderr(got.stderr_value, fact.at("stderr"));
}

void check_group(const Json& fact) {
  const auto sizes = fact.at("sizes").get<std::vector<int64_t>>();
  std::vector<Estimate> estimates;
  for (size_t i = 0; i < sizes.size(); ++i)
    estimates.push_back({fact.at("acc")[i].get<double>(), fact.at("stderr")[i].get<double>()});
  const Estimate got = pooled(estimates, sizes);
  EXPECT_NEAR(got.value, fact.at("expected").at("acc").get<double>(), 1e-15);
  expect_stderr(got.stderr_value, fact.at("expected").at("acc_stderr"));
}

void check_truncation(const Json& fact) {
  const auto num_context = fact.at("context_tokens").get<int32_t>();
  const auto num_continuation = fact.at("continuation_tokens").get<int32_t>();
  const auto request_of = [&] {
    TokenRequest request;
    for (int32_t i = 0; i < num_context + num_continuation; ++i)
      (i < num_context ? request.context : request.continuation).push_back(i);
    return request;
  };
  const auto max_length = fact.at("max_length").get<int64_t>();
  TokenRequest request = request_of();
  truncate(request, max_length, "fact");
  const Json& hf = fact.at("hf");
  EXPECT_EQ(request.context.front(), hf.at("input_first"));
  EXPECT_EQ(request.num_dropped, hf.at("dropped_from_left"));
  EXPECT_EQ(request.context.size() + request.continuation.size() - 1, hf.at("input_len"));
  EXPECT_EQ(request.context.size() - 1, hf.at("score_rows")[0]);
  EXPECT_EQ(request.context.size() - 1 + request.continuation.size(), hf.at("score_rows")[1]);
  // The client of completions servers keeps max_length - 1 tokens, that is, acts with a limit two
  // lower.
  const Json& client = fact.at("local_completions");
  request = request_of();
  truncate(request, max_length - 2, "fact");
  EXPECT_EQ(request.context.front(), client.at("prompt_first"));
  EXPECT_EQ(request.context.size() + request.continuation.size(), client.at("prompt_len"));
  EXPECT_EQ(request.context.size(), client.at("ctxlen"));
  EXPECT_EQ(request.num_dropped, client.at("dropped_from_left"));
}

void check_rolling(const Json& fact) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < fact.at("tokens").get<int32_t>(); ++i) tokens.push_back(i);
  const auto windows =
      rolling_windows(tokens, fact.at("prefix_token").get<int32_t>(),
                      fact.at("max_seq_len").get<int64_t>(), fact.at("context_len").get<int64_t>());
  const Json& want = fact.at("windows");
  ASSERT_EQ(windows.size(), want.size());
  for (size_t i = 0; i < windows.size(); ++i) {
    EXPECT_EQ(Json(windows[i].context), want[i].at("context"));
    EXPECT_EQ(Json(windows[i].continuation), want[i].at("predict"));
  }
}

void check_completions(const Json& fact) {
  const auto scores =
      parse_completions(fact.at("response"), fact.at("ctxlens").get<std::vector<int64_t>>());
  const Json& want = fact.at("expected");
  ASSERT_EQ(scores.size(), want.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].log_likelihood, want[i].at("loglikelihood").get<double>());
    EXPECT_EQ(scores[i].is_greedy, want[i].at("is_greedy"));
  }
}

void check_bf16(const Json& fact) {
  const auto exact = fact.at("logprobs_fp32").get<std::vector<float>>();
  for (size_t i = 0; i < exact.size(); ++i)
    EXPECT_EQ(round_to_bf16(exact[i]), fact.at("logprobs_bf16")[i].get<float>());
  EXPECT_EQ(sum_rounded_to_bf16(exact), fact.at("loglikelihood_bf16").get<double>());
}

void check_task_hash(const Json& fact, const std::vector<Json>& all) {
  TaskHash hash;
  for (const Json& other : all) {
    if (other.at("kind") != "doc" || other.at("task") != fact.at("task")) continue;
    Json document = other.at("doc");
    const Question question = make_question(task_named(fact.at("task")), document, "fact");
    hash.add(hash_sample(document, question.context(0), question.target));
  }
  EXPECT_EQ(hash.hex(), fact.at("task_hash"));
}

TEST(HarnessFactsTest, EveryFactHolds) {
  const std::vector<Json> all = facts();
  const std::map<std::string, std::function<void(const Json&)>> checks = {
      {"doc", check_document},
      {"text_cleanup",
       [](const Json& fact) {
         EXPECT_EQ(clean_hellaswag(fact.at("input").get<std::string>()), fact.at("output"));
       }},
      {"capitalize",
       [](const Json& fact) {
         EXPECT_EQ(text::capitalize(fact.at("input").get<std::string>()), fact.at("output"));
       }},
      {"rng", check_random},
      {"sampler", check_sampler},
      {"fewshot", [&](const Json& fact) { check_fewshot(fact, all); }},
      {"aggregate", check_aggregate},
      {"group_aggregate", check_group},
      {"truncation", check_truncation},
      {"rolling", check_rolling},
      {"completions_parse", check_completions},
      {"bf16", check_bf16},
      {"task_hash", [&](const Json& fact) { check_task_hash(fact, all); }}};
  std::map<std::string, int> seen;
  for (size_t line = 0; line < all.size(); ++line) {
    SCOPED_TRACE("line " + std::to_string(line + 1));
    const std::string kind = all[line].at("kind");
    ++seen[kind];
    ASSERT_TRUE(checks.contains(kind)) << kind;
    checks.at(kind)(all[line]);
  }
  const std::map<std::string, int> want = {
      {"doc", 36},     {"text_cleanup", 22}, {"capitalize", 16},       {"sampler", 12},
      {"fewshot", 7},  {"truncation", 7},    {"aggregate", 5},         {"rolling", 5},
      {"bf16", 5},     {"rng", 3},           {"completions_parse", 3}, {"group_aggregate", 1},
      {"task_hash", 1}};
  EXPECT_EQ(seen, want);
}

// lambada_openai and wikitext, with the harness's numbers for made-up log-likelihoods.
TEST(HarnessFactsTest, PerplexityTasksGiveTheHarnessRequestsAndMetrics) {
  std::ifstream file(test::golden_path("eval/text_tasks.json"));
  for (const Json& run : Json::parse(file)) {
    const Task task = task_named(run.at("task"));
    SCOPED_TRACE(task.name);
    const auto documents = run.at("docs").get<std::vector<Json>>();
    FewshotSampler sampler(task, documents, "pool", run.at("num_fewshot").get<int64_t>(), 1234);
    std::vector<double> scores, greedy;
    std::vector<int64_t> words, bytes;
    for (size_t i = 0; i < documents.size(); ++i) {
      Json document = documents[i];
      const std::string prefix = sampler.next_prefix(document);
      const Question question = make_question(task, document, "fact");
      const Json& sample = run.at("samples")[i];
      const Json want = run.at("requests")[i];
      ASSERT_EQ(question.num_requests(), 1);
      EXPECT_EQ(prefix + question.context(0), want[0]);
      if (task.form == TaskForm::kLambada) {
        EXPECT_EQ(question.continuation(0), want[1]);
      }
      EXPECT_EQ(question.target, sample.at("target"));
      const SampleHashes hashes = hash_sample(document, want[0], question.target);
      EXPECT_EQ(hashes.document, sample.at("doc_hash"));
      EXPECT_EQ(hashes.prompt, sample.at("prompt_hash"));
      EXPECT_EQ(hashes.target, sample.at("target_hash"));
      words.push_back(question.num_words);
      bytes.push_back(question.num_bytes);
      if (task.form == TaskForm::kWikitext) {
        EXPECT_EQ(Json(question.num_words), sample.at("word_perplexity")[1]);
        EXPECT_EQ(Json(question.num_bytes), sample.at("byte_perplexity")[1]);
        scores.push_back(sample.at("word_perplexity")[0].get<double>());
      } else {
        scores.push_back(sample.at("perplexity").get<double>());
        greedy.push_back(sample.at("acc").get<double>());
      }
    }
    const Json& results = run.at("results");
    const auto expect_metric = [&](const std::string& name, const Estimate& got) {
      const double expected = results.at(name + ",none").get<double>();
      EXPECT_NEAR(got.value, expected, 1e-14 * expected) << name;
      expect_stderr(got.stderr_value, results.at(name + "_stderr,none"));
    };
    if (task.form == TaskForm::kWikitext) {
      expect_metric("word_perplexity", weighted_perplexity(scores, words));
      expect_metric("byte_perplexity", weighted_perplexity(scores, bytes));
      expect_metric("bits_per_byte", bits_per_byte(scores, bytes));
    } else {
      expect_metric("perplexity", perplexity(scores, run.at("bootstrap_iters").get<int64_t>()));
      expect_metric("acc", mean(greedy));
    }
  }
}

}  // namespace
}  // namespace deltatrain::eval
