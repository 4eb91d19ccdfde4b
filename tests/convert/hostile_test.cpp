// Checkpoints made to do harm, through the whole program: each is refused by name with exit code 2,
// nothing in them is executed, nothing is written, and no memory is taken for what they claim.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "convert/megatron_layout.h"
#include "convert/weight_source.h"
#include "formats/indexed_dataset.h"
#include "formats/pickle.h"
#include "formats/zip_archive.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

constexpr int64_t kHuge = int64_t{1} << 62;
constexpr int64_t kPlentyOfBytes = int64_t{512} << 20;  // sanitizers take their part

// How the first tensor of the file describes itself.
struct Description {
  std::string storage_class = "FloatStorage";
  std::string key = "0";
  int64_t count = 0;  // elements of the storage; with those below, what the tensor has
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
};

class HostileTest : public ::testing::Test {
 protected:
  std::filesystem::path rank() const { return folder_ / "in/iter_0000000/mp_rank_00"; }

  void SetUp() override {
    std::filesystem::create_directories(rank());
    std::ofstream(folder_ / "in/latest_checkpointed_iteration.txt") << "0";
    std::filesystem::copy_file(test::golden_path("tiny_gdn") / "config.json",
                               folder_ / "in/iter_0000000/config.json");
  }

  // A Megatron checkpoint of zeros for the golden model, whose first tensor is described by
  // `change`. `member`: the name of a second storage's member in the archive, that of the first one
  // by default.
  void write(const std::function<void(Description&)>& change, const std::string& member = "") {
    const ModelConfig config = open_weights(test::golden_path("tiny_gdn"))->config();
    formats::PickleWriter pickle;
    formats::ZipWriter zip(rank() / "model_optim_rng.pt");
    pickle.begin_dict();
    pickle.text("model");
    pickle.begin_dict();
    std::vector<int64_t> counts;
    for (const MegatronTensor& tensor :
         megatron_tensors(config, LayerSpec::kNoTe, padded_vocabulary(config.vocab_size))) {
      Description d;
      const Shape& shape = tensor.rows.shape;
      d.key = std::to_string(counts.size());
      d.count = shape.num_elements();
      int64_t stride = d.count;
      for (int i = 0; i < shape.rank(); ++i) {
        stride /= shape[i];
        d.sizes.push_back(shape[i]);
        d.strides.push_back(stride);
      }
      counts.push_back(d.count);
      if (counts.size() == 1 && change) change(d);
      pickle.text(tensor.rows.name);
      pickle.global("torch._utils", "_rebuild_tensor_v2");
      pickle.begin_tuple();
      pickle.begin_tuple();
      pickle.text("storage");
      pickle.global("torch", d.storage_class);
      pickle.text(d.key);
      pickle.text("cpu");
      pickle.integer(d.count);
      pickle.end_tuple();
      pickle.persistent();
      pickle.integer(d.offset);
      for (const auto* list : {&d.sizes, &d.strides}) {
        pickle.begin_tuple();
        for (const int64_t value : *list) pickle.integer(value);
        pickle.end_tuple();
      }
      pickle.boolean(false);
      pickle.none();
      pickle.end_tuple();
      pickle.call();
    }
    pickle.end_dict();
    pickle.end_dict();
    zip.add_member("x/data.pkl", pickle.finish());
    for (size_t i = 0; i < counts.size(); ++i) {
      zip.add_member(i == 1 && !member.empty() ? member : "x/data/" + std::to_string(i),
                     std::string(static_cast<size_t>(4 * counts[i]), '\0'));
    }
    zip.commit();
  }

  // The most memory that a program run so far had in use.
  static int64_t peak_bytes() {
    struct rusage usage {};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    return int64_t{1024} * usage.ru_maxrss;
  }

  // Converts `from`; expects the refusal and returns what was said.
  std::string refusal(const std::filesystem::path& from) {
    const auto result = test::run_program("convert --from " + from.string() + " --to " +
                                          (folder_ / "out").string() + " --format native");
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
    EXPECT_LT(peak_bytes(), kPlentyOfBytes);
    EXPECT_THAT(result.err, HasSubstr(from.string())) << "the file is not named";
    return result.err;
  }
  std::string refusal() { return refusal(folder_ / "in"); }

  TemporaryFolder folder_;
};

TEST_F(HostileTest, WhatTheTestsChangeIsFineOtherwise) {
  write({});
  const auto result = test::run_program("convert --from " + (folder_ / "in").string() + " --to " +
                                        (folder_ / "out").string() + " --format native");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_LT(peak_bytes(), kPlentyOfBytes);
}

TEST_F(HostileTest, PicklesThatCallFunctions) {
  for (const auto& [file, function] :
       std::vector<std::pair<const char*, const char*>>{{"hostile_system.pt", "posix.system"},
                                                        {"hostile_eval.pt", "eval"},
                                                        {"hostile_getattr.pt", "getattr"},
                                                        {"hostile_open.pt", "io.open"}}) {
    std::filesystem::copy_file(test::golden_path("torch") / file, rank() / "model_optim_rng.pt",
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_THAT(refusal(), HasSubstr(std::string(function) + ", which is refused")) << file;
  }
  EXPECT_FALSE(std::filesystem::exists("deltatrain-was-here"));
}

TEST_F(HostileTest, MembersOutsideTheArchiveAndGivenTwice) {
  write({}, "x/../../../../../../tmp/deltatrain-was-here");
  EXPECT_THAT(refusal(), HasSubstr("expected a name within the archive"));
  EXPECT_FALSE(std::filesystem::exists("/tmp/deltatrain-was-here"));
  write({}, "x/data/0");
  EXPECT_THAT(refusal(), HasSubstr("x/data/0: expected one member of this name, got two"));
}

TEST_F(HostileTest, SizesAndViewsBeyondTheirStorage) {
  write([](Description& d) { d.count = kHuge; });
  EXPECT_THAT(refusal(), HasSubstr("expected a storage of 4611686018427387904 elements"));
  write([](Description& d) { d.sizes = {kHuge, 4}; });
  EXPECT_THAT(refusal(), HasSubstr("got one past its storage's end"));
  write([](Description& d) { d.strides[0] = kHuge; });
  EXPECT_THAT(refusal(), HasSubstr("got one past its storage's end"));
  write([](Description& d) { d.offset = 1; });
  EXPECT_THAT(refusal(), HasSubstr("got one past its storage's end"));
  write([](Description& d) { d.key = "nowhere"; });
  EXPECT_THAT(refusal(), HasSubstr("nowhere"));
}

TEST_F(HostileTest, DtypesThatAreNoWeights) {
  write([](Description& d) { d.storage_class = "IntStorage"; });
  EXPECT_THAT(refusal(folder_ / "in"),
              HasSubstr("embedding.word_embeddings.weight: expected f32 [512, 64], got i32"));
  write([](Description& d) { d.storage_class = "ComplexFloatStorage"; });
  EXPECT_THAT(refusal(), HasSubstr("torch ComplexFloatStorage"));
}

// safetensors: `change` edits the header of the golden model's file.
TEST_F(HostileTest, HeadersOfSafetensors) {
  const auto at = folder_ / "hf";
  const auto expect = [&](const std::function<std::string(std::string)>& change,
                          const char* message) {
    std::filesystem::remove_all(at);
    std::filesystem::copy(test::golden_path("tiny_gdn"), at,
                          std::filesystem::copy_options::recursive);
    const std::string bytes = read_file(at / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const std::string header = change(bytes.substr(8, length));
    const std::string data = bytes.substr(8 + length);
    length = header.size();
    std::ofstream(at / "model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), 8) << header << data;
    EXPECT_THAT(refusal(at), HasSubstr(message));
  };
  using Json = nlohmann::ordered_json;
  const auto edited = [](const std::function<void(Json&)>& edit) {
    return [edit](const std::string& header) {
      Json json = Json::parse(header);
      edit(json);
      return json.dump();
    };
  };
  const std::string name = "model.norm.weight";
  expect(edited([&](Json& json) { json[name]["shape"] = {kHuge, 4}; }), name.c_str());
  expect(edited([&](Json& json) { json[name]["data_offsets"] = {0, kHuge}; }), name.c_str());
  expect(edited([&](Json& json) { json[name]["dtype"] = "I64"; }), name.c_str());
  expect(
      [&](std::string header) {
        const std::string entry = Json::parse(header)[name].dump();
        return header.insert(1, "\"" + name + "\":" + entry + ",");
      },
      name.c_str());
}

// A checkpoint of another architecture than the recipe's, and one of other sizes.
TEST_F(HostileTest, AnotherModelThanTheRecipe) {
  formats::IndexedDatasetWriter tokens((folder_ / "train").string(), formats::TokenType::kU16);
  tokens.add_document(std::vector<int32_t>(5000, 1));
  tokens.commit();
  for (const char* model : {"tiny_gdn", "tiny_hybrid"}) {
    const auto result = test::run_program(
        "train --recipe " + test::golden_path("../../recipes/smoke/kda.yaml").string() +
        " --set data.train=" + (folder_ / "train").string() + " --set checkpoint.load=" +
        test::golden_path(model).string() + " --out " + (folder_ / "run").string());
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  }
}

}  // namespace
}  // namespace deltatrain::convert
