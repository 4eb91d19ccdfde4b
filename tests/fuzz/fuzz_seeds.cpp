// Writes small whole files for the fuzzers to start from: fuzz_seeds SOURCE_FOLDER OUT_FOLDER.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/hf_config.h"
#include "formats/indexed_dataset.h"
#include "formats/pickle.h"
#include "formats/safetensors.h"
#include "formats/torch_file.h"

namespace {

using namespace deltatrain;
namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string small_pickle() {
  formats::PickleWriter pickle;
  pickle.begin_dict();
  pickle.text("args");
  pickle.begin_namespace();
  pickle.text("num_layers");
  pickle.integer(1 << 20);
  pickle.text("dtype");
  pickle.global("torch", "bfloat16");
  pickle.end_namespace();
  pickle.text("model");
  pickle.begin_ordered_dict();
  pickle.text("w");
  const std::vector<int64_t> shape = {2, 3};
  pickle.tensor("FloatStorage", "0", 6, shape);
  pickle.end_dict();
  pickle.text("list");
  pickle.begin_list();
  pickle.number(0.5);
  pickle.boolean(true);
  pickle.none();
  pickle.integer(-1);
  pickle.integer(int64_t{1} << 40);
  pickle.bytes("\x80\xff");
  pickle.numpy_u32(std::vector<uint32_t>{1, 2});
  pickle.end_list();
  pickle.end_dict();
  return pickle.finish();
}

void make(const fs::path& source, const fs::path& out) {
  for (const char* name : {"pickle", "zip", "torch_file", "safetensors", "indexed_dataset",
                           "hf_config", "tokenizer_json"})
    fs::create_directories(out / name);
  const fs::path golden = source / "tests" / "golden";

  put(out / "pickle/small", small_pickle());
  {
    formats::ZipWriter zip(out / "zip/small");
    zip.add_member("x/data.pkl", small_pickle());
    zip.add_member("x/data/0", std::string(24, '\1'));
    zip.commit();
    fs::copy_file(out / "zip/small", out / "torch_file/small",
                  fs::copy_options::overwrite_existing);
  }
  for (const auto& entry : fs::directory_iterator(golden / "torch")) {
    if (entry.path().extension() != ".pt") continue;
    for (const char* name : {"zip", "torch_file"})
      fs::copy_file(entry.path(), out / name / entry.path().filename(),
                    fs::copy_options::overwrite_existing);
  }
  {
    formats::SafetensorsWriter writer(out / "safetensors/small",
                                      {{"a", DType::kF32, {2}}, {"b", DType::kBF16, {0, 3}}});
    const float values[2] = {1, 2};
    writer.write("a", 0, values, 8);
    writer.commit();
  }
  fs::copy_file(golden / "safetensors_reference.safetensors", out / "safetensors/reference",
                fs::copy_options::overwrite_existing);
  {
    const std::string prefix = (out / "indexed_dataset/small").string();
    formats::IndexedDatasetWriter writer(prefix, formats::TokenType::kU16);
    writer.add_document(std::vector<int32_t>{1, 2, 3});
    writer.add_document(std::vector<int32_t>{4});
    writer.commit();
    fs::remove(prefix + ".bin");
  }
  for (const char* name : {"tiny_gdn", "tiny_kda", "tiny_hybrid"})
    fs::copy_file(golden / name / "config.json", out / "hf_config" / name,
                  fs::copy_options::overwrite_existing);
  for (const auto& entry : fs::directory_iterator(golden / "text")) {
    if (entry.path().extension() != ".json") continue;
    const auto root = nlohmann::json::parse(read_file(entry.path()));
    put(out / "tokenizer_json" / entry.path().stem(), root.at("tokenizer").dump());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: fuzz_seeds SOURCE_FOLDER OUT_FOLDER\n", stderr);
    return 2;
  }
  make(argv[1], argv[2]);
  return 0;
}
