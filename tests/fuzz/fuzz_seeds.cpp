// Writes small whole files for the fuzzers to start from: fuzz_seeds SOURCE_FOLDER OUT_FOLDER.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/hf_config.h"
#include "dist/messages.h"
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

// A field of a protocol buffer: a number, or bytes.
std::string field(int number, uint64_t value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

// SentencePiece's form of a vocabulary of six pieces.
std::string small_sentencepiece() {
  std::string model;
  const std::pair<const char*, int> pieces[] = {{"<unk>", 2}, {"<s>", 3}, {"</s>", 3},
                                                {"a", 1},     {"b", 1},   {"ab", 1}};
  for (const auto& [text, type] : pieces)
    model += field(1, field(1, std::string(text)) + field(3, static_cast<uint64_t>(type)));
  return model + field(2, field(3, 2)) + field(3, field(1, std::string("identity")) + field(3, 0));
}

void make(const fs::path& source, const fs::path& out) {
  for (const char* name : {"pickle", "zip", "torch_file", "safetensors", "indexed_dataset",
                           "hf_config", "tokenizer_json", "run_log", "chrome_trace",
                           "tokenizer_model", "arrow_ipc", "records", "api_request",
                           "chat_template", "rank_messages"})
    fs::create_directories(out / name);
  const fs::path golden = source / "tests" / "golden";

  put(out / "pickle/small", small_pickle());
  put(out / "rank_messages/hello",
      dist::frame(dist::MessageKind::kHello,
                  dist::encode(dist::Hello{1, 2, dist::Purpose::kControl, 3, 0, "host", "1"})));
  put(out / "rank_messages/welcome",
      dist::frame(dist::MessageKind::kWelcome, dist::encode(dist::Welcome{1, {{"a", 1}, {"b", 2}}})));
  put(out / "rank_messages/goodbye",
      dist::frame(dist::MessageKind::kGoodbye, dist::encode(dist::Goodbye{6, 2, "save", "why"})));
  put(out / "rank_messages/whole",
      dist::frame(dist::MessageKind::kWhole, dist::encode(std::vector<std::string>{"a", "b"})));
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
  put(out / "run_log/metrics",
      "{\"kind\":\"run\",\"time\":1,\"train_iters\":3}\n{\"kind\":\"step\",\"step\":1,\"loss\":5.5,"
      "\"grad_norm\":1,\"lr\":0.1,\"seconds\":0.5,\"parts\":{\"data\":0.1}}\n{\"kind\":\"step\",\"step\":2,"
      "\"loss\":null,\"skipped\":true}\n{\"kind\":\"resume\",\"step\":1}\n{\"kind\":\"step\",\"step\":2,"
      "\"loss\":5}\n{\"kind\":\"validation\",\"step\":2,\"loss\":5}\n{\"kind\":\"end\",\"time\":2}\n");
  put(out / "run_log/megatron",
      " [2026-01-31 12:00:01.500000] iteration        1/    4768 | elapsed time per iteration (ms): "
      "1.0/2.0 | tokens/s/GPU inst/harmonic mean: 3.0/4.0 | learning rate: 1.0E-04 | lm loss: 1.2E+01 "
      "| grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
      " iteration       10/    4768 | lm loss: 9.0E+00 |\n validation loss at iteration 10 | lm loss "
      "value: 9.5E+00 |\n iteration       20/    4768 | lm loss: 8.0E+00 |\n");
  put(out / "run_log/state",
      "{\"max_steps\":9,\"log_history\":[{\"step\":1,\"loss\":NaN},{\"step\":2,\"loss\":40.0,"
      "\"learning_rate\":1e-4},{\"step\":2,\"train_runtime\":5}]}");
  put(out / "run_log/lines",
      "{\"current_steps\":1,\"loss\":40,\"elapsed_time\":\"0:00:05\"}\n{\"current_steps\":3,\"loss\":39}\n");
  put(out / "run_log/console", "{'loss': 95.7, 'epoch': 0.1}\n{'loss': 80.0, 'learning_rate': 1e-4}\n");
  put(out / "chrome_trace/small",
      "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"a\",\"pid\":0,\"tid\":1,\"ts\":1,\"dur\":2},"
      "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"p\"}},"
      "{\"ph\":\"s\",\"id\":1,\"pid\":\"s\"}]}");
  for (const auto& entry : fs::directory_iterator(golden / "text")) {
    if (entry.path().extension() != ".json") continue;
    const auto root = nlohmann::json::parse(read_file(entry.path()));
    put(out / "tokenizer_json" / entry.path().stem(), root.at("tokenizer").dump());
  }
  put(out / "tokenizer_model/sentencepiece", small_sentencepiece());
  put(out / "tokenizer_model/tiktoken", "IQ== 0\nIg== 1\nISI= 2\n");
  for (const auto& entry : fs::directory_iterator(golden)) {
    if (entry.path().extension() == ".arrow")
      fs::copy_file(entry.path(), out / "arrow_ipc" / entry.path().filename(),
                    fs::copy_options::overwrite_existing);
  }
  put(out / "records/lines", "{\"text\": \"a \\ud83d \\u00e9\", \"n\": [1, null]}\r\n\n{\"text\": \"\"}\n{\"text\": null}");
  put(out / "api_request/completion",
      R"({"model": "m", "prompt": [[1, 2], [3]], "temperature": 0.5, "max_tokens": 1, "logprobs": 1,
          "seed": 1234, "echo": true, "stop": ["a"], "stream": true, "n": 2,
          "stream_options": {"include_usage": true}})");
  put(out / "api_request/chat",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
          "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2, "top_k": 5})");
  for (const auto& chat : nlohmann::json::parse(read_file(golden / "chat/rendered.json")))
    put(out / "chat_template" / chat.at("name").get<std::string>(),
        chat.at("template").get<std::string>());
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
