#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "text/bpe_trainer.h"

namespace deltatrain::text {

namespace {

using Json = nlohmann::ordered_json;

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json pre_tokenizer(WordPattern pattern) {
  if (pattern == WordPattern::kGpt2) return byte_level(false, true);
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", word_pattern_text(pattern)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false, false)})}};
}

Json post_processor(const WrittenTokenizer& tokenizer) {
  if (tokenizer.bos.empty() || !tokenizer.bos_in_front) return byte_level(true, true);
  const auto& tokens = tokenizer.vocabulary.tokens;
  const auto id = std::find(tokens.begin(), tokens.begin() + tokenizer.num_special_tokens, tokenizer.bos) - tokens.begin();
  DELTATRAIN_CHECK(id < tokenizer.num_special_tokens, tokenizer.bos);
  const Json bos[2] = {{{"SpecialToken", {{"id", tokenizer.bos}, {"type_id", 0}}}},
                       {{"SpecialToken", {{"id", tokenizer.bos}, {"type_id", 1}}}}};
  const Json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json b = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  Json special = Json::object();
  special[tokenizer.bos] = {{"id", tokenizer.bos}, {"ids", Json::array({id})}, {"tokens", Json::array({tokenizer.bos})}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({bos[0], a})},
          {"pair", Json::array({bos[0], a, bos[1], b})},
          {"special_tokens", special}};
}

std::string quoted(const std::string& text) { return Json(text).dump(); }

}  // namespace

void write_tokenizer(const std::filesystem::path& folder, const WrittenTokenizer& tokenizer) {
  const TrainedVocabulary& vocabulary = tokenizer.vocabulary;
  Json added = Json::array();
  for (int64_t id = 0; id < tokenizer.num_special_tokens; ++id) {
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  // Tokens and merges one a line, so that two vocabularies can be compared by eye; written by hand because
  // an ordered object is searched for every key that is added.
  std::string text = "{\n";
  const auto member = [&](const char* key, const Json& value) {
    text += "  " + quoted(key) + ": " + value.dump() + ",\n";
  };
  member("version", "1.0");
  member("truncation", nullptr);
  member("padding", nullptr);
  member("added_tokens", added);
  member("normalizer", nullptr);
  member("pre_tokenizer", pre_tokenizer(tokenizer.pattern));
  member("post_processor", post_processor(tokenizer));
  member("decoder", byte_level(true, true));
  text += "  \"model\": {\n";
  text += "    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n";
  text += "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n";
  text += "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n";
  text += "    \"vocab\": {";
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    text += id == 0 ? "\n" : ",\n";
    text += "      " + quoted(vocabulary.tokens[id]) + ": " + std::to_string(id);
  }
  text += "\n    },\n    \"merges\": [";
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const auto& [left, right] = vocabulary.merges[rank];
    text += rank == 0 ? "\n" : ",\n";
    text += "      " + quoted(vocabulary.tokens[left] + " " + vocabulary.tokens[right]);
  }
  text += "\n    ]\n  }\n}\n";

  Json config = Json::object();
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["bos_token"] = tokenizer.bos.empty() ? Json() : Json(tokenizer.bos);
  config["eos_token"] = tokenizer.eos.empty() ? Json() : Json(tokenizer.eos);
  config["clean_up_tokenization_spaces"] = false;
  write_file_atomically(folder / "tokenizer.json", text);
  write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace deltatrain::text
