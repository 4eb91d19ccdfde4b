#include "text/tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/files.h"
#include "text/json_node.h"
#include "text/tokenizer_model.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

// The id of a token that a configuration names as text or as {"content": text}.
std::optional<int32_t> named_token(const JsonNode& node, const TokenizerModel& model) {
  const std::string& content = node.value().is_object() ? node.at("content").string() : node.string();
  const auto id = model.id_of(content);
  if (!id) node.fail("a token of the tokenizer");
  return id;
}

// Beside a tokenizer.json transformers 5 leaves both flags out of account, so that one which says something else than
// the post-processor does would have no effect: it is refused.
void check_flags(const JsonNode& root, const TokenizerModel& model) {
  const auto check = [&](const char* key, const std::optional<int32_t>& id, const std::vector<int32_t>& ids,
                         const std::string& place) {
    if (!root.has(key)) return;
    const bool puts = id && std::find(ids.begin(), ids.end(), *id) != ids.end();
    if (root.at(key).boolean() == puts) return;
    root.at(key).fail(std::string(puts ? "true, since" : "false, since no") + " " + place +
                      " is put there by tokenizer.json's post_processor, which alone decides (change that, or remove "
                      "the flag)");
  };
  check("add_bos_token", model.named.bos, model.ids_in_front(), "BOS in front");
  check("add_eos_token", model.named.eos, model.ids_behind(), "EOS behind");
}

// For a tokenizer.model, which has no post-processor: a flag of tokenizer_config.json that is there counts, and the
// other is then off unless it is there too.
void apply_flags(const JsonNode& root, TokenizerModel& model) {
  if (!root.has("add_bos_token") && !root.has("add_eos_token")) return;
  std::vector<int32_t> front, behind;
  if (root.boolean_or("add_bos_token", false) && model.named.bos) front.push_back(*model.named.bos);
  if (root.boolean_or("add_eos_token", false) && model.named.eos) behind.push_back(*model.named.eos);
  model.set_ids_around(std::move(front), std::move(behind));
}

void read_configuration(const std::filesystem::path& folder, TokenizerModel& model) {
  NamedTokens found;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path)) continue;
    const std::string where = path.string();
    const nlohmann::json json = parse_json(read_file(path), where);
    const JsonNode root(json, where, "");
    const auto read = [&](const char* key, std::optional<int32_t>& id) {
      if (!id && root.has(key)) id = named_token(root.at(key), model);
    };
    read("bos_token", found.bos);
    read("eos_token", found.eos);
    // Often names a token that is to be added for padding batches, which concerns nobody here.
    if (!found.pad && root.has("pad_token")) {
      const JsonNode pad = root.at("pad_token");
      found.pad = model.id_of(pad.value().is_object() ? pad.at("content").string() : pad.string());
    }
  }
  if (const std::filesystem::path path = folder / "generation_config.json"; std::filesystem::exists(path)) {
    const std::string where = path.string();
    const nlohmann::json json = parse_json(read_file(path), where);
    const JsonNode root(json, where, "");
    const auto read = [&](const char* key, std::optional<int32_t>& id) {
      if (id || !root.has(key)) return;
      JsonNode node = root.at(key);
      if (node.value().is_array() && node.size() > 0) node = node.at(size_t{0});
      id = static_cast<int32_t>(node.integer(0, model.vocab_size() - 1));
    };
    read("bos_token_id", found.bos);
    read("eos_token_id", found.eos);
    read("pad_token_id", found.pad);
  }
  if (found.bos) model.named.bos = found.bos;
  if (found.eos) model.named.eos = found.eos;
  if (found.pad) model.named.pad = found.pad;
}

void read_flags(const std::filesystem::path& folder, bool is_json, TokenizerModel& model) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return;
  const std::string where = path.string();
  const nlohmann::json json = parse_json(read_file(path), where);
  if (is_json) {
    check_flags(JsonNode(json, where, ""), model);
  } else {
    apply_flags(JsonNode(json, where, ""), model);
  }
}

void guess_named_tokens(TokenizerModel& model) {
  NamedTokens& named = model.named;
  const auto usual = [&](std::initializer_list<const char*> names) -> std::optional<int32_t> {
    for (const char* name : names) {
      const auto id = model.id_of(name);
      if (id && model.is_special_text(name)) return id;
    }
    return std::nullopt;
  };
  if (!named.bos && !model.ids_in_front().empty()) named.bos = model.ids_in_front().front();
  if (!named.bos) named.bos = usual({"<|begin_of_text|>", "<s>", "<bos>"});
  if (!named.eos && !model.ids_behind().empty()) named.eos = model.ids_behind().back();
  if (!named.eos) named.eos = usual({"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>"});
}

bool is_json_text(const std::string& bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string::npos && bytes[first] == '{';
}

TokenizerParts read_any_file(const std::string& bytes, const std::string& where) {
  if (is_json_text(bytes)) return read_tokenizer_json(bytes, where);
  if (is_tiktoken_file(bytes)) return read_tiktoken_file(bytes, where);
  return read_sentencepiece_file(bytes, where);
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(const Tokenizer&) = default;
Tokenizer& Tokenizer::operator=(const Tokenizer&) = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path)) {
    file = path / "tokenizer.json";
    if (!std::filesystem::exists(file)) file = path / "tokenizer.model";
    if (!std::filesystem::exists(file)) {
      throw FileError(path.string() + ": expected a folder with tokenizer.json or tokenizer.model", ExitCode::kBadInput);
    }
  }
  const std::string bytes = read_file(file);
  auto model = std::make_shared<TokenizerModel>(read_any_file(bytes, file.string()));
  read_configuration(file.parent_path(), *model);
  guess_named_tokens(*model);
  read_flags(file.parent_path(), is_json_text(bytes), *model);
  return Tokenizer(std::move(model));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, AddSpecialTokens add) const {
  std::vector<int32_t> ids;
  encode(text, add, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, AddSpecialTokens add, std::vector<int32_t>& ids) const {
  const bool special = add == AddSpecialTokens::kYes;
  if (special) ids.insert(ids.end(), model_->ids_in_front().begin(), model_->ids_in_front().end());
  model_->encode(text, ids);
  if (special) ids.insert(ids.end(), model_->ids_behind().begin(), model_->ids_behind().end());
}

namespace {

// The token as the decoder sees it, or nothing if it is unknown or left out.
std::optional<std::string> decoded_token(const TokenizerModel& model, int32_t id, SkipSpecialTokens skip) {
  auto token = model.decoder_text(id);
  if (token && skip == SkipSpecialTokens::kYes && model.is_special_text(*token)) return std::nullopt;
  return token;
}

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids, SkipSpecialTokens skip) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (auto token = decoded_token(*model_, id, skip)) tokens.push_back(*std::move(token));
  }
  return decode_tokens(model_->decoder(), std::move(tokens));
}

int64_t Tokenizer::vocab_size() const { return model_->vocab_size(); }
int64_t Tokenizer::num_tokens() const { return model_->num_tokens(); }

std::string Tokenizer::token_text(int32_t id) const {
  if (const AddedToken* token = model_->added_token(id)) return token->content;
  return std::string(model_->bpe().tokens()[id]);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  const auto token = model_->decoder_text(id);
  if (!token) return "";
  if (model_->is_byte_level()) return byte_level_token_bytes(*token);
  std::string text = *token;
  for (const DecoderStep& step : model_->decoder()) {
    if (step.kind == DecoderStep::Kind::kByteFallback) {
      if (const int byte = fallback_byte(text); byte >= 0) return std::string(1, static_cast<char>(byte));
    } else if (step.kind == DecoderStep::Kind::kReplace) {
      text = decode_tokens({step}, {text});
    } else if (step.kind == DecoderStep::Kind::kMetaspace) {
      // As in the middle of a text, where no mark is dropped.
      text = decode_tokens({step}, {"", text});
    }
  }
  return text;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const { return model_->id_of(token); }

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = model_->added_token(id);
  return token != nullptr && token->special;
}

std::vector<int32_t> Tokenizer::special_ids() const {
  std::vector<int32_t> ids;
  for (const AddedToken& token : model_->added_tokens()) {
    if (token.special) ids.push_back(token.id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::optional<int32_t> Tokenizer::bos_id() const { return model_->named.bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return model_->named.eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return model_->named.pad; }

std::string Tokenizer::special_tokens_rule() const {
  const auto list = [&](const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) {
      if (!text.empty()) text += ", ";
      text += token_text(id) + " (" + std::to_string(id) + ")";
    }
    return text.empty() ? std::string("nothing") : text;
  };
  return list(model_->ids_in_front()) + " in front, " + list(model_->ids_behind()) + " behind";
}

std::span<const std::string_view> tokenizer_file_names() {
  static constexpr std::array<std::string_view, 8> kNames = {
      "tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
      "tokenizer.model", "vocab.json",            "merges.txt",              "chat_template.jinja"};
  return kNames;
}

std::vector<TokenizerFile> read_tokenizer_files(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  std::vector<TokenizerFile> files;
  if (!is_folder) {
    std::string content = read_file(path);
    const char* name = is_json_text(content) ? "tokenizer.json" : "tokenizer.model";
    files.push_back({name, std::move(content)});
  }
  const std::filesystem::path folder = is_folder ? path : path.parent_path();
  for (const std::string_view name : tokenizer_file_names()) {
    const bool names_tokens = name == "tokenizer_config.json" || name == "special_tokens_map.json";
    if ((is_folder || names_tokens) && std::filesystem::is_regular_file(folder / name, ignored))
      files.push_back({std::string(name), read_file(folder / name)});
  }
  return files;
}

bool has_tokenizer(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder / "tokenizer.json", ignored) ||
         std::filesystem::is_regular_file(folder / "tokenizer.model", ignored);
}

}  // namespace deltatrain::text
