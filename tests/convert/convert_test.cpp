#include "convert/convert.h"

#include <gmock/gmock.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/model_folder.h"
#include "config/hf_config.h"
#include "formats/element_cast.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ConvertReport convert(const std::filesystem::path& from, const std::filesystem::path& to,
                      TargetFormat format, std::optional<DType> dtype = std::nullopt) {
  TargetOptions options;
  options.to = to;
  options.format = format;
  options.dtype = dtype;
  options.round_trip = true;
  return convert_model(from, options, silent_reporter());
}

template <class Call>
std::string message_of(ExitCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

// A copy of a golden model's folder that a test may spoil, its weights in one file.
void copy_model(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(test::golden_path(name) / "config.json", to / "config.json");
  const formats::SafetensorsFolder golden(test::golden_path(name));
  std::vector<formats::TensorSpec> specs;
  for (const auto& [tensor, entry] : golden.tensors()) {
    specs.push_back({tensor, entry.tensor->dtype, entry.tensor->shape});
  }
  formats::SafetensorsWriter writer(to / "model.safetensors", specs);
  for (const auto& [tensor, entry] : golden.tensors()) {
    const auto bytes = entry.tensor->bytes;
    writer.write(tensor, 0, bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  writer.commit();
}

// Writes the folder's weights again with other names or shapes; `change` edits the list, and an
// empty name drops a tensor.
struct Entry {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

void rewrite(const std::filesystem::path& folder,
             const std::function<void(std::vector<Entry>&)>& change) {
  std::vector<Entry> entries;
  {
    const formats::SafetensorsFile file(folder / "model.safetensors");
    for (const auto& [name, tensor] : file.tensors()) {
      Entry entry{name, tensor.shape, std::vector<float>(tensor.bytes.size() / 4)};
      std::memcpy(entry.values.data(), tensor.bytes.data(), tensor.bytes.size());
      entries.push_back(std::move(entry));
    }
  }
  change(entries);
  std::vector<formats::TensorSpec> specs;
  for (const Entry& entry : entries) {
    if (!entry.name.empty()) specs.push_back({entry.name, DType::kF32, entry.shape});
  }
  formats::SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (const Entry& entry : entries) {
    if (entry.name.empty()) continue;
    writer.write(entry.name, 0, entry.values.data(), static_cast<int64_t>(4 * entry.values.size()));
  }
  writer.commit();
}

Entry& find(std::vector<Entry>& entries, const std::string& name) {
  return *std::find_if(entries.begin(), entries.end(),
                       [&name](const Entry& entry) { return entry.name == name; });
}

class ConvertTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ConvertTest, ThereAndBackIsTheSameFile) {
  const TemporaryFolder folder;
  const auto golden = folder / "golden";
  copy_model(GetParam(), golden);
  const ConvertReport there = convert(golden, folder / "native", TargetFormat::kNative);
  EXPECT_TRUE(there.written && there.round_trip_exact && !there.lossy);
  EXPECT_EQ(there.source, "Hugging Face folder");
  const ConvertReport back = convert(folder / "native", folder / "hf", TargetFormat::kHuggingFace);
  EXPECT_TRUE(back.written && back.round_trip_exact && !back.lossy);
  EXPECT_EQ(back.source, "checkpoint of step 0");
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(golden / "model.safetensors"));
  EXPECT_EQ(there.files[0].sha256, back.files[0].sha256);
  const auto config = [](const std::filesystem::path& path) {
    return model_config_from_hf(read_file(path / "config.json"), path.string());
  };
  EXPECT_EQ(config(folder / "hf"), config(golden));
  // An iteration of the native form is a Hugging Face folder itself.
  EXPECT_EQ(config(folder / "native/iter_0000000"), config(golden));
}

TEST_P(ConvertTest, NarrowsToBf16AndSaysSo) {
  const TemporaryFolder folder;
  const auto golden = test::golden_path(GetParam());
  const ConvertReport report =
      convert(golden, folder / "hf", TargetFormat::kHuggingFace, DType::kBF16);
  EXPECT_TRUE(report.written && report.round_trip_exact && report.lossy);
  const formats::SafetensorsFolder wide(golden);
  const formats::SafetensorsFile narrow(folder / "hf/model.safetensors");
  for (const auto& [name, entry] : wide.tensors()) {
    const formats::StoredTensor& tensor = *entry.tensor;
    const formats::StoredTensor& got = narrow.at(name);
    ASSERT_EQ(got.dtype, DType::kBF16);
    for (int64_t i = 0; i < tensor.shape.num_elements(); ++i) {
      float value;
      uint16_t bits;
      std::memcpy(&value, tensor.bytes.data() + 4 * i, 4);
      std::memcpy(&bits, got.bytes.data() + 2 * i, 2);
      ASSERT_EQ(bits, BFloat16(value).bits) << name << " " << i;
    }
  }
  EXPECT_THAT(read_file(folder / "hf/config.json"), HasSubstr("\"bfloat16\""));
  // Back to f32 is exact: every bf16 value is one of f32.
  EXPECT_FALSE(
      convert(folder / "hf", folder / "f32", TargetFormat::kHuggingFace, DType::kF32).lossy);
}

INSTANTIATE_TEST_SUITE_P(TinyModels, ConvertTest,
                         ::testing::Values("tiny_gdn", "tiny_kda", "tiny_hybrid"));

TEST(ConvertStrictTest, ListsEveryDifferenceAndWritesNothing) {
  const TemporaryFolder folder;
  copy_model("tiny_gdn", folder / "in");
  rewrite(folder / "in", [](std::vector<Entry>& entries) {
    find(entries, "model.layers.1.attn.A_log").name = "";
    find(entries, "model.norm.weight").name = "model.final_norm.weight";
    find(entries, "model.layers.0.attn.o_proj.weight").shape = Shape{32, 128};
  });
  const std::string arguments = "convert --from " + (folder / "in").string() + " --to " +
                                (folder / "out").string() + " --format native";
  const auto result = test::run_program(arguments);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out,
            "73 tensors, 201372 parameters, 2 missing, 1 extra, 1 shape mismatches\n"
            "missing: model.layers.1.attn.A_log\n"
            "missing: model.norm.weight\n"
            "extra: model.final_norm.weight\n"
            "shape mismatch: model.layers.0.attn.o_proj.weight: expected f32 [64, 64], got f32 "
            "[32, 128]\n");
  EXPECT_THAT(result.err, HasSubstr("expected the tensors of its model, got 2 missing"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  const auto json = nlohmann::json::parse(test::run_program(arguments + " --json").out);
  EXPECT_FALSE(json["written"].get<bool>());
  EXPECT_EQ(json["extra"], nlohmann::json({"model.final_norm.weight"}));
}

// A rule, not an accident: what is not a number is carried nowhere.
TEST(ConvertStrictTest, RefusesWeightsThatAreNotFinite) {
  const TemporaryFolder folder;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::filesystem::remove_all(folder / "in");
    copy_model("tiny_gdn", folder / "in");
    rewrite(folder / "in", [bad](std::vector<Entry>& entries) {
      find(entries, "model.layers.1.attn.o_proj.weight").values[70] = bad;
    });
    for (const TargetFormat format :
         {TargetFormat::kNative, TargetFormat::kHuggingFace, TargetFormat::kMegatron}) {
      EXPECT_THAT(
          message_of(ExitCode::kCheckFailed,
                     [&] { convert(folder / "in", folder / "out", format); }),
          HasSubstr("model.layers.1.attn.o_proj.weight: expected numbers that are finite in f32, "
                    "got NaN or infinity at element 70; nothing was written"));
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
    }
  }
  // Finite in f32, but past the largest number of bf16.
  std::filesystem::remove_all(folder / "in");
  copy_model("tiny_gdn", folder / "in");
  rewrite(folder / "in", [](std::vector<Entry>& entries) {
    find(entries, "model.norm.weight").values[0] = std::numeric_limits<float>::max();
  });
  EXPECT_TRUE(convert(folder / "in", folder / "wide", TargetFormat::kHuggingFace).written);
  EXPECT_THAT(message_of(ExitCode::kCheckFailed,
                         [&] {
                           convert(folder / "in", folder / "out", TargetFormat::kHuggingFace,
                                   DType::kBF16);
                         }),
              HasSubstr("model.norm.weight: expected numbers that are finite in bf16"));
}

TEST(ConvertStrictTest, TakesATiedHeadUnderEitherNameAndStoresItOnce) {
  for (const bool both : {true, false}) {
    const TemporaryFolder folder;
    copy_model("tiny_kda", folder / "in");
    const std::string golden = read_file(folder / "in/model.safetensors");
    rewrite(folder / "in", [both](std::vector<Entry>& entries) {
      Entry head = find(entries, "model.embeddings.weight");
      head.name = "lm_head.weight";
      if (!both) find(entries, "model.embeddings.weight").name = "";
      entries.push_back(head);
    });
    EXPECT_TRUE(convert(folder / "in", folder / "out", TargetFormat::kHuggingFace).written);
    EXPECT_EQ(read_file(folder / "out/model.safetensors"), golden);
  }
}

TEST(ConvertStrictTest, RefusesATiedHeadOfOtherValues) {
  const TemporaryFolder folder;
  copy_model("tiny_kda", folder / "in");
  rewrite(folder / "in", [](std::vector<Entry>& entries) {
    Entry head = find(entries, "model.embeddings.weight");
    head.name = "lm_head.weight";
    head.values[5] += 1;
    entries.push_back(head);
  });
  EXPECT_THAT(
      message_of(ExitCode::kBadInput,
                 [&] { convert(folder / "in", folder / "out", TargetFormat::kHuggingFace); }),
      HasSubstr("lm_head.weight: expected the values of model.embeddings.weight"));
  // Untied, the same file is a whole model.
  auto config = nlohmann::json::parse(read_file(folder / "in/config.json"));
  config["tie_word_embeddings"] = false;
  std::ofstream(folder / "in/config.json") << config;
  EXPECT_EQ(convert(folder / "in", folder / "out", TargetFormat::kHuggingFace).num_tensors, 87);
}

TEST(ConvertStrictTest, RefusesKdaWithGatesPerKeyHeadByName) {
  const TemporaryFolder folder;
  copy_model("tiny_kda", folder / "in");
  auto config = nlohmann::json::parse(read_file(folder / "in/config.json"));
  config["num_heads"] = 2;  // four value heads
  config["num_v_heads"] = 4;
  std::ofstream(folder / "in/config.json") << config;
  rewrite(folder / "in", [](std::vector<Entry>& entries) {
    for (Entry& entry : entries) {
      if (!entry.name.ends_with("A_log")) continue;
      entry.shape = Shape{2};
      entry.values.resize(2);
    }
  });
  EXPECT_THAT(message_of(ExitCode::kBadInput,
                         [&] { convert(folder / "in", folder / "out", TargetFormat::kNative); }),
              HasSubstr("attn.A_log: expected one value per value head (4), got 2, one per key "
                        "head: KDA weights of "
                        "FLA 0.4.0 or older"));
}

TEST(ConvertTargetTest, NeverWritesOverAnything) {
  const TemporaryFolder folder;
  const auto golden = test::golden_path("tiny_gdn");
  std::filesystem::create_directory(folder / "used");
  std::ofstream(folder / "used/notes.txt") << "mine";
  EXPECT_THAT(
      message_of(ExitCode::kBadInput,
                 [&] { convert(golden, folder / "used", TargetFormat::kHuggingFace); }),
      HasSubstr("expected a folder that is empty or doesn't exist, got one with files in it"));
  EXPECT_THAT(
      message_of(ExitCode::kBadInput, [&] { convert(golden, golden, TargetFormat::kHuggingFace); }),
      HasSubstr("got one with files in it"));
  std::ofstream(folder / "file") << "";
  EXPECT_THAT(message_of(ExitCode::kBadInput,
                         [&] { convert(golden, folder / "file", TargetFormat::kHuggingFace); }),
              HasSubstr("got a file"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_TRUE(convert(golden, folder / "empty/", TargetFormat::kHuggingFace).written);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3)
      << "no temporary folders";
}

TEST(ConvertSourceTest, RefusesBrokenSources) {
  const TemporaryFolder folder;
  const auto attempt = [&] { convert(folder / "in", folder / "out", TargetFormat::kNative); };
  EXPECT_THAT(message_of(ExitCode::kBadInput, attempt),
              HasSubstr("expected a folder with a model"));
  copy_model("tiny_gdn", folder / "in");
  std::filesystem::resize_file(folder / "in/model.safetensors", 500000);
  EXPECT_THAT(message_of(ExitCode::kBadInput, attempt), HasSubstr("model.safetensors: "));
  std::filesystem::remove(folder / "in/config.json");
  std::filesystem::copy_file(test::golden_path("tiny_gdn") / "model.safetensors",
                             folder / "in/model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message_of(ExitCode::kBadInput, attempt), HasSubstr("config.json: cannot be opened"));
  std::ofstream(folder / "in/config.json") << "{\"model_type\": \"llama\"}";
  EXPECT_THAT(message_of(ExitCode::kBadInput, attempt), HasSubstr("config.json: model_type"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(ConvertSourceTest, AFlippedByteOfACheckpointIsFound) {
  const TemporaryFolder folder;
  convert(test::golden_path("tiny_gdn"), folder / "native", TargetFormat::kNative);
  const auto weights = folder / "native/iter_0000000/model.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(weights, std::ios::binary) << bytes;
  EXPECT_THAT(
      message_of(ExitCode::kBadInput,
                 [&] { convert(folder / "native", folder / "out", TargetFormat::kHuggingFace); }),
      HasSubstr("checksum: expected"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(ConvertShardsTest, ReadsAndWritesSeveralFiles) {
  const TemporaryFolder folder;
  TargetOptions options;
  const auto golden = test::golden_path("tiny_gdn");
  options.to = folder / "shards";
  options.max_file_bytes = 200000;
  options.round_trip = true;
  const ConvertReport report = convert_model(golden, options, silent_reporter());
  EXPECT_GT(report.files.size(), 3U);
  EXPECT_TRUE(std::filesystem::exists(folder / "shards/model.safetensors.index.json"));
  convert(folder / "shards", folder / "one", TargetFormat::kHuggingFace);
  EXPECT_EQ(read_file(folder / "one/model.safetensors"), read_file(golden / "model.safetensors"));
}

TEST(ConvertCompanionsTest, CopiesTheTokenizerAndNamesItsSpecialTokens) {
  const TemporaryFolder folder;
  copy_model("tiny_gdn", folder / "in");
  const std::string tokenizer =
      "{\"added_tokens\": [{\"id\": 1, \"content\": \"<s>\"}, {\"id\": 2, \"content\": \"</s>\"}], "
      "\"model\": {}}";
  std::ofstream(folder / "in/tokenizer.json") << tokenizer;
  std::ofstream(folder / "in/special_tokens_map.json") << "{}";
  convert(folder / "in", folder / "native", TargetFormat::kNative);
  convert(folder / "native", folder / "hf", TargetFormat::kHuggingFace);
  EXPECT_EQ(read_file(folder / "hf/tokenizer.json"), tokenizer);
  EXPECT_EQ(read_file(folder / "hf/special_tokens_map.json"), "{}");
  const auto config = nlohmann::json::parse(read_file(folder / "hf/tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(config["model_max_length"], 256);
  const auto generation = nlohmann::json::parse(read_file(folder / "hf/generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], 2);

  // From another place, and nowhere.
  TargetOptions options;
  const auto golden = test::golden_path("tiny_gdn");
  options.to = folder / "other";
  options.tokenizer = folder / "in/tokenizer.json";
  convert_model(golden, options, silent_reporter());
  EXPECT_EQ(read_file(folder / "other/tokenizer.json"), tokenizer);
  // Of another name, but found by it.
  std::filesystem::rename(folder / "in/tokenizer.json", folder / "words.json");
  options.to = folder / "renamed";
  options.tokenizer = folder / "words.json";
  convert_model(golden, options, silent_reporter());
  EXPECT_EQ(read_file(folder / "renamed/tokenizer.json"), tokenizer);
  options.to = folder / "none";
  options.tokenizer = folder / "empty";
  std::filesystem::create_directory(*options.tokenizer);
  EXPECT_THAT(
      message_of(ExitCode::kBadInput, [&] { convert_model(golden, options, silent_reporter()); }),
      HasSubstr("expected a tokenizer's files, got none"));
}

TEST(ConvertCommandTest, PrintsTheSummary) {
  const TemporaryFolder folder;
  const auto result =
      test::run_program("convert --from " + test::golden_path("tiny_hybrid").string() + " --to " +
                        (folder / "out").string() + " --format hf --dtype bf16 --round-trip");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("64 tensors, 193776 parameters, 0 missing, 0 extra, 0 shape mismatches\n"
                "round trip: every bit equal after the change of dtype, which rounds\nsha256 "));
  EXPECT_EQ(test::run_program("convert --from a --to b --format onnx").exit_code, 2);
  EXPECT_EQ(test::run_program("convert --from a --to b").exit_code, 2);
}

}  // namespace
}  // namespace deltatrain::convert
