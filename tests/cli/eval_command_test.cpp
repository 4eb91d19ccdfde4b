// `eval` and `compare` as programs: a small untrained model on documents whose hashes the harness
// gave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "formats/text_column.h"  // reads_parquet
#include "support/test_files.h"

namespace deltatrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::vector<Json> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Json> result;
  for (std::string line; std::getline(file, line);) result.push_back(Json::parse(line));
  return result;
}

void write_lines(const fs::path& path, const std::vector<Json>& rows) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path);
  for (const Json& row : rows) file << row.dump() << "\n";
}

class EvalCommandTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    std::map<std::string, std::vector<Json>> documents;
    for (const Json& fact : lines_of(golden_path("eval/harness_facts.jsonl"))) {
      if (fact.at("kind") == "doc") documents[fact.at("task")].push_back(fact.at("doc"));
    }
    write_lines(data() / "baber/piqa/piqa_validation.jsonl", documents.at("piqa"));
    write_lines(data() / "arc_easy/test.jsonl", documents.at("arc_easy"));
    write_lines(data() / "ai2_arc/ARC-Challenge/test.jsonl", documents.at("arc_challenge"));
    write_lines(data() / "Rowan/hellaswag/data/validation-00000-of-00001.jsonl",
                documents.at("hellaswag"));
    write_lines(data() / "EleutherAI/race/race_high_test.jsonl", documents.at("race"));
    write_lines(data() / "cais/mmlu/abstract_algebra/test.jsonl",
                documents.at("mmlu_abstract_algebra"));
    std::ifstream file(golden_path("eval/text_tasks.json"));
    for (const Json& run : Json::parse(file)) {
      const std::string task = run.at("task");
      write_lines(data() / task / "test.jsonl", run.at("docs").get<std::vector<Json>>());
    }
    std::ofstream(*folder_ / "text.txt")
        << documents.at("race")[0].dump() << documents.at("piqa")[1].dump();
    ASSERT_EQ(
        run_program("tokenizer train --vocab-size 300 --input " + (*folder_ / "text.txt").string() +
                    " --out " + (*folder_ / "tokenizer").string())
            .exit_code,
        0);
    ASSERT_EQ(run_program("init --recipe recipes/smoke/gdn.yaml --set model.vocab_size=320 --out " +
                          model())
                  .exit_code,
              0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static fs::path data() { return *folder_ / "data"; }
  static std::string model() { return (*folder_ / "model").string(); }
  static std::string common() {
    return "eval --model " + model() + " --tokenizer " + (*folder_ / "tokenizer").string() +
           " --data " + data().string() + " ";
  }
  static std::string only_line(const std::string& arguments, int exit_code) {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << "\n" << result.err;
    const size_t last = result.err.rfind("deltatrain: ");
    return last == std::string::npos ? result.err : result.err.substr(last + 12);
  }
  // The file in `out` whose name begins so.
  static fs::path only_file(const fs::path& out, const std::string& begin) {
    fs::path found;
    for (const auto& entry : fs::recursive_directory_iterator(out)) {
      if (entry.path().filename().string().starts_with(begin)) found = entry.path();
    }
    EXPECT_FALSE(found.empty()) << begin << " in " << out;
    return found;
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* EvalCommandTest::folder_ = nullptr;

const char* const kTasks =
    "arc_easy,arc_challenge,hellaswag,piqa,race,mmlu_abstract_algebra,lambada_openai,wikitext";

TEST_F(EvalCommandTest, FilesHaveTheHarnessFormAndHashesAndDoNotDependOnTheBatch) {
  const fs::path a = *folder_ / "a", b = *folder_ / "b";
  const ProgramResult first = run_program(common() + "--bootstrap-iters 1000 -s --out " +
                                          a.string() + " --tasks " + kTasks);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("|Version|Filter|n-shot|"));
  EXPECT_EQ(run_program(common() + "--bootstrap-iters 1000 -s --batch_size 3 --out " + b.string() +
                        " --tasks " + kTasks)
                .exit_code,
            0);

  const Json results = Json::parse(read_file(only_file(a, "results_")));
  std::vector<std::string> keys;
  for (const auto& item : results.items()) keys.push_back(item.key());
  const std::vector<std::string> want = {"results",
                                         "group_subtasks",
                                         "configs",
                                         "versions",
                                         "n-shot",
                                         "higher_is_better",
                                         "n-samples",
                                         "config",
                                         "git_hash",
                                         "date",
                                         "pretty_env_info",
                                         "transformers_version",
                                         "lm_eval_version",
                                         "upper_git_hash",
                                         "tokenizer_pad_token",
                                         "tokenizer_eos_token",
                                         "tokenizer_bos_token",
                                         "eot_token_id",
                                         "max_length",
                                         "task_hashes",
                                         "model_source",
                                         "model_name",
                                         "model_name_sanitized",
                                         "system_instruction",
                                         "system_instruction_sha",
                                         "fewshot_as_multiturn",
                                         "chat_template",
                                         "chat_template_sha",
                                         "total_evaluation_time_seconds"};
  EXPECT_EQ(keys, want);
  EXPECT_TRUE(results.at("results").at("hellaswag").contains("acc_norm,none"));
  EXPECT_EQ(results.at("versions").at("race"), 3.0);
  EXPECT_EQ(results.at("results").at("wikitext").at("word_perplexity_stderr,none"), "N/A");

  std::map<std::string, std::vector<Json>> facts;
  for (const Json& fact : lines_of(golden_path("eval/harness_facts.jsonl"))) {
    if (fact.at("kind") == "doc") facts[fact.at("task")].push_back(fact);
    if (fact.at("kind") == "task_hash") {
      EXPECT_EQ(results.at("task_hashes").at(fact.at("task").get<std::string>()),
                fact.at("task_hash"));
    }
  }
  for (const char* task :
       {"arc_easy", "arc_challenge", "hellaswag", "piqa", "race", "mmlu_abstract_algebra"}) {
    const std::string name = std::string("samples_") + task + "_2";  // the year follows
    EXPECT_EQ(read_file(only_file(a, name)), read_file(only_file(b, name))) << task;
    const std::vector<Json> samples = lines_of(only_file(a, name));
    ASSERT_EQ(samples.size(), facts.at(task).size());
    double right = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      const Json& fact = facts.at(task)[i];
      for (const char* key : {"doc_hash", "prompt_hash", "target_hash"})
        EXPECT_EQ(samples[i].at(key), fact.at("hashes").at(key)) << task << " " << i;
      size_t best = 0;
      std::vector<double> scores;
      for (const Json& response : samples[i].at("resps")) {
        scores.push_back(std::stod(response.at(0).at(0).get<std::string>()));
        if (scores.back() > scores[best]) best = scores.size() - 1;
      }
      EXPECT_EQ(samples[i].at("acc"), best == fact.at("gold").get<size_t>() ? 1.0 : 0.0);
      right += samples[i].at("acc").get<double>();
      const Json& arguments = samples[i].at("arguments");
      ASSERT_EQ(arguments.size(), fact.at("requests").size());
      EXPECT_EQ(arguments.at("gen_args_1").at("arg_0"), fact.at("requests")[1].at("context"));
      EXPECT_EQ(arguments.at("gen_args_1").at("arg_1"), fact.at("requests")[1].at("continuation"));
    }
    EXPECT_DOUBLE_EQ(results.at("results").at(task).at("acc,none").get<double>(),
                     right / static_cast<double>(samples.size()));
  }
}

TEST_F(EvalCommandTest, SettingsThatMoveAScoreMoveItAndAreRecorded) {
  const auto run_with = [](const std::string& options) {
    const ProgramResult result = run_program(
        common() + "--json --tasks piqa,race,lambada_openai --bootstrap-iters 0 " + options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  };
  const auto perplexity = [](const Json& results) {
    return results.at("results").at("lambada_openai").at("perplexity,none");
  };
  const Json plain = run_with("");
  EXPECT_EQ(plain.at("config").at("scoring_mode"), "fp32");
  EXPECT_EQ(plain.at("config").at("data_files").size(), 3U);
  const Json no_bos = run_with("--add-bos false");
  EXPECT_NE(perplexity(no_bos), perplexity(plain));
  EXPECT_EQ(no_bos.at("config").at("special_tokens"), "none");
  const Json rounded = run_with("--scoring bf16");
  EXPECT_NE(perplexity(rounded), perplexity(plain));
  EXPECT_EQ(rounded.at("config").at("scoring_mode"), "bf16");
  const Json old_race = run_with("--race-version 2");
  EXPECT_EQ(old_race.at("versions").at("race"), 2.0);
  EXPECT_NE(old_race.at("task_hashes").at("race"), plain.at("task_hashes").at("race"));
  const Json shorter = run_with("--max-length 64 --limit 1");
  EXPECT_EQ(shorter.at("n-samples").at("race").at("effective"), 1);
  EXPECT_EQ(shorter.at("config").at("truncated").at("race").at("requests"), 4);
  EXPECT_EQ(shorter.at("max_length"), 64);
}

// What pyarrow wrote of the documents gives the files that JSON lines of them give, but for names and digests of the data.
TEST_F(EvalCommandTest, ParquetGivesWhatJsonLinesGive) {
  if (!formats::reads_parquet()) GTEST_SKIP() << "built without Arrow C++";
  const fs::path stored = *folder_ / "stored", a = *folder_ / "lines", b = *folder_ / "table";
  const std::map<std::string, fs::path> files = {
      {"arc_easy", "allenai/ai2_arc/ARC-Easy/test-00000-of-00001.parquet"},
      {"hellaswag", "Rowan/hellaswag/data/validation-00000-of-00001.parquet"},
      {"piqa", "baber/piqa/piqa_validation.parquet"},
      {"race", "EleutherAI/race/high/test-00000-of-00001.parquet"},
      {"mmlu_abstract_algebra", "cais/mmlu/abstract_algebra/test-00000-of-00001.parquet"}};
  std::string tasks;
  for (const auto& [task, path] : files) {
    fs::create_directories((stored / path).parent_path());
    fs::copy_file(golden_path("eval/" + task + ".parquet"), stored / path);
    tasks += (tasks.empty() ? "" : ",") + task;
  }
  const std::string start = "eval --model " + model() + " --tokenizer " +
                            (*folder_ / "tokenizer").string() + " --tasks " + tasks + " -s --data ";
  ASSERT_EQ(run_program(start + data().string() + " --out " + a.string()).exit_code, 0);
  const ProgramResult result = run_program(start + stored.string() + " --out " + b.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const auto& [task, path] : files) {
    const std::string name = "samples_" + task + "_2";  // the year follows
    EXPECT_EQ(read_file(only_file(a, name)), read_file(only_file(b, name))) << task;
  }
  const Json lines = Json::parse(read_file(only_file(a, "results_")));
  const Json table = Json::parse(read_file(only_file(b, "results_")));
  for (const char* key : {"results", "task_hashes", "n-samples"})
    EXPECT_EQ(lines.at(key), table.at(key));
  EXPECT_EQ(table.at("config").at("data_files").begin().key(), files.at("arc_easy").string());

  const std::string piqa = "eval --model " + model() + " --tokenizer " +
                           (*folder_ / "tokenizer").string() + " --tasks piqa --data ";
  fs::copy_file(golden_path("eval/race.parquet"), stored / files.at("piqa"),
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(only_line(piqa + stored.string(), 2),
              HasSubstr("piqa_validation.parquet: column goal: expected this column, got only"));
  std::ofstream(stored / files.at("piqa")) << "PAR1";
  EXPECT_THAT(only_line(piqa + stored.string(), 2),
              HasSubstr("piqa_validation.parquet: footer: expected a whole Parquet file"));
}

TEST_F(EvalCommandTest, BadInputIsOneLine) {
  EXPECT_THAT(only_line(common() + "--tasks helaswag", 2), HasSubstr("did you mean hellaswag?"));
  EXPECT_THAT(only_line(common() + "--tasks openbookqa", 2),
              HasSubstr("allenai/openbookqa/main/test-00000-of-00001.parquet"));
  EXPECT_THAT(
      only_line("eval --model " + model() + " --data " + data().string() + " --tasks piqa", 2),
      HasSubstr("tokenizer: expected a tokenizer.json"));
  EXPECT_THAT(only_line(common() + "--tasks piqa --batch-size 0", 2), HasSubstr("--batch-size"));
  EXPECT_THAT(only_line(common() + "--tasks piqa --num-fewshot 2", 2), HasSubstr("piqa_train"));
  EXPECT_THAT(only_line(common() + "--tasks race --num-fewshot 6", 2),
              HasSubstr("expected 6 or more, got 5"));
  const fs::path broken = *folder_ / "broken";
  write_lines(broken / "piqa/validation.jsonl", {Json{{"goal", "g"}, {"sol1", "a"}, {"label", 0}}});
  const std::string with_broken = "eval --model " + model() + " --tokenizer " +
                                  (*folder_ / "tokenizer").string() + " --data " + broken.string() +
                                  " --tasks piqa";
  EXPECT_THAT(
      only_line(with_broken, 2),
      HasSubstr(
          "validation.jsonl: row 1: columns: expected sol2 among them, got goal, sol1, label"));
  std::ofstream(broken / "piqa/validation.jsonl") << "{\"goal\": \n";
  EXPECT_THAT(
      only_line(with_broken, 2),
      HasSubstr("validation.jsonl:1: row: expected a JSON object on one line, got broken JSON"));
}

TEST_F(EvalCommandTest, CompareTellsNoiseFromDifferenceAndUnlikeSettings) {
  const auto file = [](const char* name, double acc, double shots) {
    const fs::path path = *folder_ / name;
    const Json results = {
        {"results", {{"piqa", {{"alias", "piqa"}, {"acc,none", acc}, {"acc_stderr,none", 0.01}}}}},
        {"versions", {{"piqa", 1.0}}},
        {"n-shot", {{"piqa", shots}}}};
    std::ofstream(path) << results.dump();
    return path.string();
  };
  const std::string a = file("a.json", 0.60, 0), near = file("near.json", 0.61, 0),
                    far = file("far.json", 0.70, 0), shots = file("shots.json", 0.60, 5);
  const ProgramResult result = run_program("compare --json " + a + " " + near);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json row = Json::parse(result.out).at("metrics")[0];
  EXPECT_NEAR(row.at("difference").get<double>(), 0.01, 1e-12);
  EXPECT_NEAR(row.at("sigma").get<double>(), 0.70710678, 1e-6);  // 0.01 / (0.01 sqrt 2)
  EXPECT_EQ(row.at("chance"), 0.5);
  EXPECT_EQ(run_program("compare " + a + " " + near + " --max-abs-pp 1.5 --max-sigma 2").exit_code,
            0);
  EXPECT_THAT(only_line("compare " + a + " " + far + " --max-abs-pp 1.5", 4),
              HasSubstr("piqa acc: difference"));
  EXPECT_THAT(only_line("compare " + a + " " + far + " --max-sigma 2", 4),
              HasSubstr("standard errors"));
  EXPECT_THAT(only_line("compare " + a + " " + shots, 2), HasSubstr("piqa examples: 0 and 5"));
  EXPECT_EQ(run_program("compare --allow-differences " + a + " " + shots).exit_code, 0);
  EXPECT_THAT(only_line("compare " + a + " " + model() + "/config.json", 2),
              HasSubstr("an object results"));
}

}  // namespace
}  // namespace deltatrain::test
