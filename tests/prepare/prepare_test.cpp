#include "prepare/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "formats/indexed_dataset.h"
#include "prepare/raw_files.h"
#include "support/test_files.h"

namespace deltatrain::prepare {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Bytes as ids, 256 behind each document.
TextEncoder byte_encoder(int64_t vocab_size = 257) {
  TextEncoder encoder;
  encoder.encode = [](std::string_view text, std::vector<int32_t>& ids) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  };
  encoder.vocab_size = vocab_size;
  encoder.eod_id = 256;
  encoder.identity = "bytes";
  encoder.description = "bytes";
  return encoder;
}

class PrepareTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.out = (folder_ / "out" / "corpus").string();
    options_.num_workers = 2;
  }

  std::string raw(const std::string& name, const std::string& bytes) {
    return test::write_raw(folder_ / "raw" / name, bytes);
  }

  // Documents of very different lengths in plain and compressed files; some empty.
  void write_mixed_input() {
    int number = 0;
    const auto jsonl = [&](int count) {
      std::string bytes;
      for (int i = 0; i < count; ++i, ++number) {
        const size_t length = number % 7 == 0 ? 0 : static_cast<size_t>(number * number % 997);
        std::string text = std::to_string(number) + ":";
        text.resize(length, static_cast<char>('a' + number % 26));
        bytes += "{\"n\": " + std::to_string(number) + ", \"text\": \"" + text + "\"}\n";
      }
      return bytes;
    };
    raw("a.jsonl", jsonl(700));
    raw("b.jsonl.gz", test::gzip(jsonl(300)));
    raw("c.jsonl.zst", test::zstd(jsonl(200)));
    raw("d.txt", "One document.\nIn two lines.\n");
    raw("e.txt", "");
    raw("f.jsonl", jsonl(3));
    options_.inputs = {(folder_ / "raw").string()};
  }

  PrepareResult run() { return prepare_token_files(options_, byte_encoder(), silent_reporter()); }

  std::string refusal() {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  }

  // Every file beside OUT, by name.
  std::map<std::string, std::string> outputs() const {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(fs::path(options_.out).parent_path())) {
      files[entry.path().filename().string()] =
          entry.is_directory() ? "a folder" : read_file(entry.path());
    }
    return files;
  }

  // Finished ones in the folder of the parts.
  int num_parts() const {
    int count = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.out + ".parts")) {
      const std::string name = entry.path().filename().string();
      count += name.ends_with(".json") && name != "plan.json" ? 1 : 0;
    }
    return count;
  }

  std::vector<std::string> documents(const std::string& name) const {
    const formats::IndexedDataset dataset((folder_ / "out" / name).string());
    std::vector<std::string> texts;
    for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
      std::vector<int32_t> ids(static_cast<size_t>(dataset.length(i)));
      dataset.read(dataset.first_token(i), ids, 257);
      std::string text;
      for (const int32_t id : ids) text += id == 256 ? '|' : static_cast<char>(id);
      texts.push_back(text);
    }
    return texts;
  }

  test::TemporaryFolder folder_;
  PrepareOptions options_;
};

TEST_F(PrepareTest, WritesDocumentsInOrderWithTheirEnd) {
  options_.inputs = {raw("b.jsonl", "{\"text\":\"two\"}\n{\"text\":\"\"}\n{\"text\":\"three\"}\n"),
                     raw("a.txt", "one")};
  const PrepareResult result = run();
  EXPECT_THAT(documents("corpus_text_document"), ElementsAre("two|", "three|", "one|"));
  EXPECT_EQ(result.counts.documents, 3);
  EXPECT_EQ(result.counts.tokens, 14);
  EXPECT_EQ(result.counts.skipped.at("empty"), 1);
  const auto files = outputs();
  EXPECT_EQ(files.size(), 3U);
  EXPECT_EQ(files.at("corpus_text_document.bin").size(), 28U);
}

TEST_F(PrepareTest, ManifestCountsAndNamesTheOutputs) {
  write_mixed_input();
  const PrepareResult result = run();
  const auto manifest = nlohmann::json::parse(outputs().at("corpus.manifest.json"));
  EXPECT_EQ(manifest.at("documents"), result.counts.documents);
  // Of the numbers below 1203, 172 are multiples of 7, and 997^2 is a multiple of 997.
  EXPECT_EQ(manifest.at("documents"), 1203 - 173 + 1);
  EXPECT_EQ(manifest.at("skipped").at("empty"), 173);
  EXPECT_EQ(manifest.at("inputs").size(), 6U);
  const auto& bin = manifest.at("outputs").at(0).at("bin");
  EXPECT_EQ(bin.at("file"), "corpus_text_document.bin");
  EXPECT_EQ(bin.at("bytes"), 2 * result.counts.tokens);
  const formats::IndexedDataset dataset(options_.out + "_text_document");
  EXPECT_EQ(dataset.num_documents(), result.counts.documents);
  EXPECT_EQ(dataset.num_tokens(), result.counts.tokens);
}

TEST_F(PrepareTest, SameBytesForAnyNumberOfWorkers) {
  write_mixed_input();
  options_.shard_bytes = 20000;
  options_.num_workers = 1;
  run();
  const auto want = outputs();
  for (const int64_t workers : {3, 64}) {
    options_.num_workers = workers;
    options_.overwrite = true;
    run();
    EXPECT_EQ(outputs(), want) << workers;
  }
}

TEST_F(PrepareTest, SizeOfShardsDoesNotShowInTheTokens) {
  write_mixed_input();
  run();
  const auto want = outputs();
  for (const int64_t bytes : {3000, 50000, 1 << 20}) {
    options_.shard_bytes = bytes;
    options_.overwrite = true;
    run();
    EXPECT_EQ(outputs().at("corpus_text_document.bin"), want.at("corpus_text_document.bin"))
        << bytes;
    EXPECT_EQ(outputs().at("corpus_text_document.idx"), want.at("corpus_text_document.idx"))
        << bytes;
  }
}

TEST_F(PrepareTest, ShardsOnManyMachinesMergeToTheSame) {
  write_mixed_input();
  options_.shard_bytes = 20000;
  run();
  const auto want = outputs();
  fs::remove_all(fs::path(options_.out).parent_path());
  options_.num_machines = 3;
  for (const int64_t machine : {2, 0, 1}) {
    options_.machine = machine;
    EXPECT_TRUE(run().outputs.empty());
  }
  options_.num_machines = 1;
  options_.machine = 0;
  options_.merge = true;
  run();
  EXPECT_EQ(outputs(), want);
}

TEST_F(PrepareTest, MergeNamesAMissingShard) {
  write_mixed_input();
  options_.shard_bytes = 20000;
  options_.merge = true;
  EXPECT_THAT(refusal(), HasSubstr("expected the parts that --shard runs have made, got none"));
  options_.merge = false;
  options_.num_machines = 2;
  run();
  options_.num_machines = 1;
  options_.merge = true;
  EXPECT_THAT(refusal(), HasSubstr("got none for shard 1"));
}

// Lines are dealt in turn, skipped ones included; the merged files are the partitions end to end.
TEST_F(PrepareTest, PartitionsTakeLinesInTurn) {
  options_.inputs = {raw("a.jsonl",
                         "{\"text\":\"0\"}\n{\"text\":\"1\"}\n{\"text\":\"\"}\n{\"text\":\"3\"}\n{"
                         "\"text\":\"4\"}\n"),
                     raw("b.jsonl", "{\"text\":\"5\"}\n{\"text\":\"6\"}\n")};
  options_.num_partitions = 3;
  run();
  EXPECT_THAT(documents("corpus_0_text_document"), ElementsAre("0|", "3|", "6|"));
  EXPECT_THAT(documents("corpus_1_text_document"), ElementsAre("1|", "4|"));
  EXPECT_THAT(documents("corpus_2_text_document"), ElementsAre("5|"));
  EXPECT_THAT(documents("corpus_text_document"), ElementsAre("0|", "3|", "6|", "1|", "4|", "5|"));
}

TEST_F(PrepareTest, ValidationDocumentsAreSpreadEvenly) {
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes += "{\"text\":\"" + std::to_string(i) + "\"}\n";
  options_.inputs = {raw("a.jsonl", bytes)};
  options_.valid_fraction = 0.25;
  run();
  EXPECT_THAT(documents("corpus_valid_text_document"), ElementsAre("3|", "7|"));
  EXPECT_EQ(documents("corpus_text_document").size(), 8U);
}

TEST_F(PrepareTest, LargeVocabulariesGetFourBytes) {
  options_.inputs = {raw("a.txt", "one")};
  prepare_token_files(options_, byte_encoder(65500), silent_reporter());
  EXPECT_EQ(outputs().at("corpus_text_document.bin").size(), 16U);
}

TEST_F(PrepareTest, FinishedRunIsNotRepeated) {
  write_mixed_input();
  const PrepareResult first = run();
  const auto before = outputs();
  const PrepareResult again = run();
  EXPECT_FALSE(first.already_there);
  EXPECT_TRUE(again.already_there);
  EXPECT_EQ(again.counts.tokens, first.counts.tokens);
  EXPECT_EQ(again.outputs.size(), 2U);
  EXPECT_EQ(outputs(), before);
}

TEST_F(PrepareTest, NothingIsWrittenOver) {
  write_mixed_input();
  run();
  const auto before = outputs();
  options_.records.text_documents = TextDocuments::kLine;
  EXPECT_THAT(
      refusal(),
      AllOf(
          HasSubstr("corpus.manifest.json: expected no earlier output, got one of other settings"),
          HasSubstr("txt_documents \"line\" against \"file\""), HasSubstr("--overwrite")));
  EXPECT_EQ(outputs(), before);
  raw("d.txt", "Another document.");
  options_.records.text_documents = TextDocuments::kFile;
  EXPECT_THAT(refusal(), HasSubstr("input_bytes"));
  options_.overwrite = true;
  EXPECT_EQ(refusal(), "accepted");
  EXPECT_NE(outputs(), before);
}

TEST_F(PrepareTest, FilesOfUnknownOriginAreNotWrittenOver) {
  options_.inputs = {raw("a.txt", "one")};
  test::write_raw(options_.out + "_text_document.idx", "precious");
  EXPECT_THAT(
      refusal(),
      HasSubstr(
          "corpus_text_document.idx: expected no earlier output, got a file without a manifest"));
  EXPECT_EQ(outputs().size(), 1U);
}

TEST_F(PrepareTest, DamagedOutputIsNamed) {
  options_.inputs = {raw("a.txt", "one")};
  run();
  fs::resize_file(options_.out + "_text_document.bin", 2);
  EXPECT_THAT(refusal(), HasSubstr("files missing or of another size"));
}

// A bad line in a late shard: the shards before it are kept, and once it is mended only the others
// are made.
TEST_F(PrepareTest, GoesOnWhereItStopped) {
  for (int i = 0; i < 8; ++i)
    raw("f" + std::to_string(i) + ".txt", "document " + std::to_string(i));
  options_.inputs = {(folder_ / "raw").string()};
  options_.shard_bytes = 1;
  options_.num_workers = 1;
  std::atomic<int> encoded = 0;
  int fail_at = 5;
  TextEncoder encoder = byte_encoder();
  encoder.encode = [&](std::string_view text, std::vector<int32_t>& ids) {
    if (++encoded == fail_at) throw FormatError("stopped here");
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  };
  EXPECT_THROW(prepare_token_files(options_, encoder, silent_reporter()), FormatError);
  EXPECT_FALSE(fs::exists(options_.out + "_text_document.bin"));
  EXPECT_EQ(num_parts(), 4);
  test::write_raw(options_.out + ".parts/0123456789abcdef.tokens.tmp-1",
                  "left by a run that was killed");

  const int before = encoded;
  fail_at = 0;
  prepare_token_files(options_, encoder, silent_reporter());
  EXPECT_EQ(encoded - before, 4);
  const auto resumed = outputs();
  options_.overwrite = true;
  run();
  EXPECT_EQ(outputs(), resumed);
}

// SIGKILL at many moments, from the first shard to the merge; each run goes on from what is there.
TEST_F(PrepareTest, KillsAtAnyMomentChangeNothing) {
  write_mixed_input();
  // Of many shards, and of one, whose tokens are not written a second time.
  for (const auto& [layout, shard_bytes] :
       std::vector<std::pair<OutputLayout, int64_t>>{{OutputLayout::kMegatron, 4000},
                                                     {OutputLayout::kRows, 4000},
                                                     {OutputLayout::kMegatron, 1 << 28}}) {
    options_.layout = layout;
    options_.shard_bytes = shard_bytes;
    options_.rows = {.seq_length = 64, .map_batch_size = 16, .map_processes = 5};
    options_.out = (folder_ / "clean" / "corpus").string();
    run();
    const auto content = [&](const std::string& folder) {
      std::map<std::string, std::string> files;
      for (const auto& entry : fs::recursive_directory_iterator(folder_ / folder)) {
        if (entry.is_regular_file())
          files[fs::relative(entry.path(), folder_ / folder).string()] = read_file(entry.path());
      }
      return files;
    };
    const auto want = content("clean");
    options_.out = (folder_ / "killed" / "corpus").string();
    int killed = 0;
    for (int moment = 0; moment < 200; ++moment) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        run();
        _exit(0);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(2000 + 700 * moment));
      kill(child, SIGKILL);
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status)) {
        ASSERT_EQ(WEXITSTATUS(status), 0);
        break;
      }
      ++killed;
    }
    EXPECT_GT(killed, 3);
    run();
    EXPECT_EQ(content("killed"), want);
    fs::remove_all(folder_ / "clean");
    fs::remove_all(folder_ / "killed");
  }
}

TEST_F(PrepareTest, PartsOfOtherSettingsAreNotMixedIn) {
  options_.inputs = {raw("a.jsonl", "{\"text\":\"a\"}\n"), raw("b.jsonl", "{\"text\":null}\n")};
  options_.shard_bytes = 14;
  options_.num_workers = 1;
  EXPECT_THAT(refusal(), HasSubstr("b.jsonl:1: key text: expected a string, got null"));
  options_.records.max_document_bytes = 77;
  EXPECT_THAT(refusal(), HasSubstr("max_document_bytes 77 against 1073741824"));
  options_.records.on_bad_document = OnBadDocument::kSkip;
  options_.overwrite = true;
  EXPECT_EQ(run().counts.skipped.at("null"), 1);
}

// A file that is not UTF-8 late in the input, found with one worker after the shards before it. They
// serve the run over the mended file, and the run by another rule for such files.
TEST_F(PrepareTest, FinishedShardsServeTheRunAfterBadInput) {
  options_.inputs = {(folder_ / "raw").string()};
  options_.shard_bytes = 1;
  options_.num_workers = 1;
  int encoded = 0;
  TextEncoder encoder = byte_encoder();
  encoder.encode = [&](std::string_view text, std::vector<int32_t>& ids) {
    ++encoded;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  };
  const auto outcome = [&] {
    encoded = 0;
    try {
      prepare_token_files(options_, encoder, silent_reporter());
      return std::string("done");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return std::string(error.what());
    }
  };
  const auto stop_at_bad_file = [&] {
    fs::remove_all(fs::path(options_.out).parent_path());
    for (int i = 0; i < 6; ++i)
      raw("f" + std::to_string(i) + ".txt", "document " + std::to_string(i));
    raw("f4.txt", "\xff");
    EXPECT_THAT(outcome(), HasSubstr("f4.txt:1: byte 0 of the text: expected UTF-8, got 0xff"));
    EXPECT_EQ(encoded, 4);
    EXPECT_EQ(num_parts(), 4);
    EXPECT_FALSE(fs::exists(options_.out + "_text_document.bin"));
  };

  stop_at_bad_file();
  options_.records.on_invalid_utf8 = OnInvalidUtf8::kSkip;
  EXPECT_EQ(outcome(), "done");
  EXPECT_EQ(encoded, 1);
  EXPECT_THAT(
      documents("corpus_text_document"),
      ElementsAre("document 0|", "document 1|", "document 2|", "document 3|", "document 5|"));
  options_.records.on_invalid_utf8 = OnInvalidUtf8::kStop;

  stop_at_bad_file();
  raw("f4.txt", "mended");
  raw("f1.txt", "another");
  EXPECT_EQ(outcome(), "done");
  EXPECT_EQ(encoded, 3);
  EXPECT_THAT(documents("corpus_text_document"), ElementsAre("document 0|", "another|", "document 2|",
                                                             "document 3|", "mended|", "document 5|"));
}

TEST_F(PrepareTest, BadInputWithoutAFinishedShardLeavesNothing) {
  options_.inputs = {raw("a.jsonl", "{\"text\":\"a\"}\n{\"text\":null}\n")};
  EXPECT_THAT(refusal(), HasSubstr("a.jsonl:2: key text: expected a string, got null"));
  EXPECT_TRUE(outputs().empty());
}

TEST_F(PrepareTest, InputWithoutDocumentsIsNamed) {
  options_.inputs = {raw("a.txt", ""), raw("b.jsonl", "{\"text\":\"\"}\n\n")};
  EXPECT_THAT(refusal(), HasSubstr("expected at least one document, got none in 2 files: 1 empty"));
  EXPECT_TRUE(outputs().empty());
}

TEST_F(PrepareTest, RefusesOptionsThatContradict) {
  options_.inputs = {raw("a.txt", "one")};
  options_.num_partitions = 2;
  options_.valid_fraction = 0.5;
  EXPECT_THAT(refusal(), HasSubstr("--partitions with --valid-fraction"));
  options_.num_partitions = 0;
  EXPECT_THAT(refusal(), HasSubstr("--partitions: expected at least 1, got 0"));
  options_.num_partitions = 1;
  options_.valid_fraction = 1;
  EXPECT_THAT(refusal(), HasSubstr("--valid-fraction: expected a number from 0 to below 1"));
  options_.valid_fraction = 0;
  options_.machine = 3;
  options_.num_machines = 3;
  EXPECT_THAT(refusal(), HasSubstr("--shard: expected i/n with i from 1 to n, got 4/3"));
}

}  // namespace
}  // namespace deltatrain::prepare
