#include "verify/dump.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "formats/npy.h"
#include "formats/safetensors.h"
#include "model/training_step.h"
#include "model/weights.h"
#include "ops/cross_entropy.h"

namespace deltatrain::verify {

namespace {

constexpr int64_t kMaxInputBytes = int64_t{1} << 30;

template <class T>
void append_ids(const formats::StoredTensor& array, std::vector<int64_t>& ids) {
  const auto count = static_cast<size_t>(array.shape.num_elements());
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, array.bytes.data() + i * sizeof(T), sizeof(T));
    ids.push_back(static_cast<int64_t>(value));
  }
}

struct RawTokens {
  int64_t num_rows = 0;
  int64_t row_length = 0;
  std::vector<int64_t> ids;
};

RawTokens from_array(const formats::StoredTensor& array, const std::string& where) {
  RawTokens raw;
  const Shape& shape = array.shape;
  if (shape.rank() < 1 || shape.rank() > 2) {
    throw FormatError(error_text(where, "input_ids", "one or two axes", to_string(shape)));
  }
  raw.num_rows = shape.rank() == 2 ? shape[0] : 1;
  raw.row_length = shape[shape.rank() - 1];
  switch (array.dtype) {
    case DType::kI32:
      append_ids<int32_t>(array, raw.ids);
      break;
    case DType::kI64:
      append_ids<int64_t>(array, raw.ids);
      break;
    case DType::kU16:
      append_ids<uint16_t>(array, raw.ids);
      break;
    default:
      throw FormatError(error_text(where, "input_ids", "whole numbers (i32, i64 or u16)",
                                   std::string(dtype_name(array.dtype))));
  }
  return raw;
}

RawTokens from_json(const std::filesystem::path& path) {
  const std::string where = path.string();
  nlohmann::json json = nlohmann::json::parse(read_file(path, kMaxInputBytes), nullptr, false);
  if (json.is_discarded()) throw FormatError(error_text(where, "", "JSON", "something else"));
  if (json.is_object() && json.contains("input_ids")) json = nlohmann::json(json["input_ids"]);
  if (!json.is_array())
    throw FormatError(error_text(where, "input_ids", "a list", json.type_name()));
  if (json.empty() || !json.front().is_array()) json = nlohmann::json::array({json});
  RawTokens raw;
  raw.num_rows = static_cast<int64_t>(json.size());
  raw.row_length = static_cast<int64_t>(json.front().size());
  for (const nlohmann::json& row : json) {
    if (!row.is_array() || static_cast<int64_t>(row.size()) != raw.row_length) {
      throw FormatError(error_text(where, "input_ids", "lists of one length", "others"));
    }
    for (const nlohmann::json& id : row) {
      if (!id.is_number_integer())
        throw FormatError(error_text(where, "input_ids", "whole numbers", id.dump()));
      raw.ids.push_back(id.get<int64_t>());
    }
  }
  return raw;
}

RawTokens read_raw(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") {
    const formats::SafetensorsFile file(path);
    return from_array(file.at("input_ids"), path.string());
  }
  if (extension == ".npy") {
    const formats::NpyFile file(path);
    return from_array(file.array(), path.string());
  }
  if (extension == ".json") return from_json(path);
  throw ConfigError(
      error_text(path.string(), "input", ".safetensors, .npy or .json", "\"" + extension + "\""));
}

std::vector<float> to_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

TokenMatrix read_tokens(const std::filesystem::path& path, int64_t vocab_size) {
  const RawTokens raw = read_raw(path);
  if (raw.ids.empty())
    throw FormatError(error_text(path.string(), "input_ids", "at least one token", "none"));
  TokenMatrix tokens{raw.num_rows, raw.row_length, {}, {}, {}};
  for (size_t i = 0; i < raw.ids.size(); ++i) {
    if (raw.ids[i] < 0 || raw.ids[i] >= vocab_size) {
      throw FormatError(error_text(path.string(), "input_ids[" + std::to_string(i) + "]",
                                   "an id below the vocabulary size " + std::to_string(vocab_size),
                                   std::to_string(raw.ids[i])));
    }
    tokens.ids.push_back(static_cast<int32_t>(raw.ids[i]));
  }
  return tokens;
}

int64_t model_vocab_size(const std::filesystem::path& model_path) {
  return read_model_config(checkpoint::ModelFolder(model_path)).vocab_size;
}

void dump(const Context& context, const Context& planning_context,
          const std::filesystem::path& model_path, const TokenMatrix& tokens,
          const std::filesystem::path& out, DumpGradients gradients) {
  const checkpoint::ModelFolder folder(model_path);
  const ModelConfig config = read_model_config(folder);
  const int64_t B = tokens.num_rows, T = tokens.row_length;

  std::vector<int32_t> labels = tokens.labels, offsets = tokens.offsets;
  if (offsets.empty()) {
    for (int64_t b = 0; b <= B; ++b) offsets.push_back(narrow<int32_t>(b * T));
  }
  if (labels.empty()) {
    labels.assign(tokens.ids.size(), ops::kIgnoredLabel);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t + 1 < T; ++t) {
        labels[static_cast<size_t>(b * T + t)] = tokens.ids[static_cast<size_t>(b * T + t + 1)];
      }
    }
  }
  const auto num_valid = static_cast<int64_t>(labels.size()) -
                         std::count(labels.begin(), labels.end(), ops::kIgnoredLabel);
  const auto valid = static_cast<double>(std::max<int64_t>(1, num_valid));

  const auto purpose = gradients == DumpGradients::kYes ? TrainingStep::Purpose::kGradients
                                                        : TrainingStep::Purpose::kTrace;
  const BatchShape shape{.num_rows = B * T,
                         .num_sequences = static_cast<int64_t>(offsets.size()) - 1,
                         .lengths = tokens.offsets.empty() ? SequenceLengths::kEqual
                                                           : SequenceLengths::kAny};
  const MemoryPlan plan = TrainingStep::plan(planning_context, config, shape, purpose);
  TrainingStep step(context, config, OptimizerConfig{}, shape, plan.arena(), purpose);
  load_weights(context, config, folder, step.parameters());
  const TrainingStep::Trace trace =
      step.trace({.ids = tokens.ids, .labels = labels, .offsets = offsets}, 1 / valid);

  std::vector<formats::TensorSpec> specs = {{"input_ids", DType::kI32, {B, T}},
                                            {"logits", DType::kF32, {B, T, config.vocab_size}},
                                            {"loss", DType::kF32, {1}}};
  for (size_t i = 0; i < trace.streams.size(); ++i) {
    specs.push_back({"hidden." + std::to_string(i), DType::kF32, {B, T, config.hidden_size}});
  }
  if (gradients == DumpGradients::kYes) {
    for (const auto& info : step.parameters().infos()) {
      specs.push_back({"grad." + info.name, DType::kF32, info.checkpoint_shape});
    }
  }
  formats::SafetensorsWriter writer(out, specs);
  const auto write = [&](const std::string& name, const std::vector<double>& values) {
    const std::vector<float> floats = to_floats(values);
    writer.write(name, 0, floats.data(), static_cast<int64_t>(floats.size() * sizeof(float)));
  };
  writer.write("input_ids", 0, tokens.ids.data(),
               static_cast<int64_t>(tokens.ids.size() * sizeof(int32_t)));
  write("logits", trace.logits);
  write("loss", {trace.loss_sum / valid});
  for (size_t i = 0; i < trace.streams.size(); ++i)
    write("hidden." + std::to_string(i), trace.streams[i]);
  if (gradients == DumpGradients::kYes) {
    for (const auto& info : step.parameters().infos()) {
      write("grad." + info.name, to_host(context, step.parameters().gradient(info)));
    }
  }
  writer.commit();
}

}  // namespace deltatrain::verify
