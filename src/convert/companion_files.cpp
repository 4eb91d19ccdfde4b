#include "convert/companion_files.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "config/hf_config.h"
#include "text/tokenizer.h"

namespace deltatrain::convert {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr const char* kTokenizerName = "tokenizer.json";
constexpr const char* kTokenizerConfigName = "tokenizer_config.json";
constexpr const char* kGenerationName = "generation_config.json";

constexpr const char* kChatTemplateName = "chat_template.jinja";

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// The text of the special token with this id, or null.
Json token_text(const Json& tokenizer, const std::optional<int64_t>& id) {
  if (!id || !tokenizer.contains("added_tokens") || !tokenizer["added_tokens"].is_array())
    return nullptr;
  for (const Json& token : tokenizer["added_tokens"]) {
    if (token.is_object() && token.contains("id") && token["id"] == *id &&
        token.contains("content")) {
      return token["content"];
    }
  }
  return nullptr;
}

std::string make_tokenizer_config(const std::string& tokenizer_text, const std::string& where,
                                  const ModelConfig& config) {
  Json tokenizer;
  try {
    tokenizer = Json::parse(tokenizer_text);
  } catch (const Json::exception& error) {
    throw FormatError(where + ": expected JSON: " + error.what());
  }
  Json root = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"model_max_length", config.max_position_embeddings},
               {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, std::optional<int64_t>> roles[] = {
      {"bos_token", config.bos_token_id},
      {"eos_token", config.eos_token_id},
      {"pad_token", config.pad_token_id}};
  for (const auto& [key, id] : roles) {
    const Json text = token_text(tokenizer, id);
    if (!text.is_null()) root[key] = text;
  }
  return root.dump(2) + "\n";
}

}  // namespace

std::vector<checkpoint::CompanionFile> tokenizer_files(const std::filesystem::path& path,
                                                       const ModelConfig& config) {
  std::vector<checkpoint::CompanionFile> files;
  for (text::TokenizerFile& file : text::read_tokenizer_files(path))
    files.push_back({std::move(file.name), std::move(file.content)});
  if (is_file(path / kChatTemplateName)) {
    files.push_back({kChatTemplateName, read_file(path / kChatTemplateName, kMaxFileBytes)});
  }
  const auto has = [&files](const char* name) {
    for (const auto& file : files) {
      if (file.name == name) return true;
    }
    return false;
  };
  if (has(kTokenizerName) && !has(kTokenizerConfigName)) {
    files.push_back({kTokenizerConfigName,
                     make_tokenizer_config(files.front().content, path.string(), config)});
  }
  return files;
}

std::vector<checkpoint::CompanionFile> model_files(const ModelConfig& config, DType dtype,
                                                   const std::filesystem::path& source_folder) {
  std::vector<checkpoint::CompanionFile> files;
  files.push_back({"config.json", model_config_to_hf(config, dtype)});
  if (is_file(source_folder / kGenerationName)) {
    files.push_back({kGenerationName, read_file(source_folder / kGenerationName, kMaxFileBytes)});
    return files;
  }
  Json root = {{"_from_model_config", true}};
  const std::pair<const char*, std::optional<int64_t>> ids[] = {
      {"bos_token_id", config.bos_token_id},
      {"eos_token_id", config.eos_token_id},
      {"pad_token_id", config.pad_token_id}};
  for (const auto& [key, id] : ids) {
    if (id) root[key] = *id;
  }
  files.push_back({kGenerationName, root.dump(2) + "\n"});
  return files;
}

}  // namespace deltatrain::convert
