// Reads the file that Hugging Face `tokenizers` writes. Components that are not known are refused by name.

#include <functional>
#include <unordered_map>

#include "text/json_node.h"
#include "text/regex.h"
#include "text/tokenizer_model.h"
#include "text/utf8.h"

namespace deltatrain::text {

namespace {

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;
constexpr int kMaxNesting = 32;

// Calls `add` for the component, or for each of those in a Sequence.
void flatten(const JsonNode& node, const char* list, int depth, const std::function<void(const JsonNode&)>& add) {
  if (node.is_null()) return;
  if (depth > kMaxNesting)
    node.unsupported("a Sequence nested at most " + std::to_string(kMaxNesting) + " deep", "a deeper one");
  if (node.at("type").string() != "Sequence") return add(node);
  const JsonNode items = node.at(list);
  for (size_t i = 0; i < items.size(); ++i) flatten(items.at(i), list, depth + 1, add);
}

Pattern read_pattern(const JsonNode& node) {
  Pattern pattern;
  if (node.has("String")) {
    pattern.text = node.at("String").string();
    return pattern;
  }
  if (!node.has("Regex")) node.fail("a pattern {\"String\": ...} or {\"Regex\": ...}");
  const JsonNode regex = node.at("Regex");
  pattern.text = regex.string();
  pattern.is_literal = false;
  pattern.word_pattern = find_word_pattern(pattern.text);
  if (pattern.word_pattern) return pattern;
  try {
    pattern.regex = std::make_shared<const Regex>(pattern.text);
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(regex.path() + ": " + error.what());
  } catch (const FormatError& error) {
    throw FormatError(regex.path() + ": " + error.what());
  }
  return pattern;
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.unsupported("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", "\"" + name + "\"");
}

PrependScheme read_prepend_scheme(const JsonNode& node) {
  PrependScheme scheme = PrependScheme::kAlways;
  if (node.has("prepend_scheme")) {
    const JsonNode value = node.at("prepend_scheme");
    const std::string& name = value.string();
    if (name == "first") {
      scheme = PrependScheme::kFirst;
    } else if (name == "never") {
      scheme = PrependScheme::kNever;
    } else if (name != "always") {
      value.fail("\"first\", \"never\" or \"always\"");
    }
  }
  if (node.has("add_prefix_space") && !node.at("add_prefix_space").boolean()) {
    if (scheme != PrependScheme::kNever) node.at("add_prefix_space").fail("true, as prepend_scheme says");
  }
  return scheme;
}

std::string read_character(const JsonNode& node) {
  const std::string& text = node.string();
  const char* p = text.data();
  if (!text.empty()) next_code_point(p);
  if (text.empty() || p != text.data() + text.size()) node.fail("one character");
  return text;
}

void read_normalizer(const JsonNode& node, TokenizerParts& parts) {
  flatten(node, "normalizers", 0, [&](const JsonNode& item) {
    const std::string& type = item.at("type").string();
    NormalizerStep step;
    if (type == "Prepend") {
      step.kind = NormalizerStep::Kind::kPrepend;
      step.content = item.at("prepend").string();
    } else if (type == "Replace") {
      step.kind = NormalizerStep::Kind::kReplace;
      step.pattern = read_pattern(item.at("pattern"));
      step.content = item.at("content").string();
    } else if (type == "Strip") {
      step.kind = NormalizerStep::Kind::kStrip;
      step.strip_left = item.at("strip_left").boolean();
      step.strip_right = item.at("strip_right").boolean();
    } else if (type == "NFC") {
      step.kind = NormalizerStep::Kind::kNfc;
    } else if (type == "NFD") {
      step.kind = NormalizerStep::Kind::kNfd;
    } else if (type == "ByteLevel") {
      step.kind = NormalizerStep::Kind::kByteLevel;
    } else {
      item.unsupported("Prepend, Replace, Strip, NFC, NFD or ByteLevel", "the normalizer \"" + type + "\"");
    }
    parts.normalizer.push_back(std::move(step));
  });
}

void read_pre_tokenizer(const JsonNode& node, TokenizerParts& parts) {
  flatten(node, "pretokenizers", 0, [&](const JsonNode& item) {
    using Kind = PreTokenizerStep::Kind;
    const std::string& type = item.at("type").string();
    PreTokenizerStep step;
    if (type == "Split") {
      step.kind = Kind::kSplit;
      step.pattern = read_pattern(item.at("pattern"));
      step.behavior = read_behavior(item.at("behavior"));
      step.invert = item.at("invert").boolean();
    } else if (type == "ByteLevel") {
      step.kind = Kind::kByteLevel;
      step.add_prefix_space = item.at("add_prefix_space").boolean();
      step.use_regex = item.boolean_or("use_regex", true);
    } else if (type == "Digits") {
      step.kind = Kind::kDigits;
      step.individual_digits = item.at("individual_digits").boolean();
    } else if (type == "Punctuation") {
      step.kind = Kind::kPunctuation;
      if (item.has("behavior")) step.behavior = read_behavior(item.at("behavior"));
    } else if (type == "Whitespace") {
      step.kind = Kind::kWhitespace;
    } else if (type == "WhitespaceSplit") {
      step.kind = Kind::kWhitespaceSplit;
    } else if (type == "Metaspace") {
      step.kind = Kind::kMetaspace;
      step.replacement = read_character(item.at("replacement"));
      step.prepend_scheme = read_prepend_scheme(item);
      step.split = item.boolean_or("split", true);
    } else if (type == "CharDelimiterSplit") {
      step.kind = Kind::kCharDelimiterSplit;
      step.pattern.text = read_character(item.at("delimiter"));
      step.behavior = SplitBehavior::kRemoved;
    } else {
      item.unsupported(
          "Split, ByteLevel, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace or CharDelimiterSplit",
          "the pre-tokenizer \"" + type + "\"");
    }
    parts.pre_tokenizer.push_back(std::move(step));
  });
}

void read_decoder(const JsonNode& node, TokenizerParts& parts) {
  flatten(node, "decoders", 0, [&](const JsonNode& item) {
    using Kind = DecoderStep::Kind;
    const std::string& type = item.at("type").string();
    DecoderStep step;
    if (type == "ByteLevel") {
      step.kind = Kind::kByteLevel;
    } else if (type == "Replace") {
      step.kind = Kind::kReplace;
      step.pattern = read_pattern(item.at("pattern"));
      step.content = item.at("content").string();
    } else if (type == "ByteFallback") {
      step.kind = Kind::kByteFallback;
    } else if (type == "Fuse") {
      step.kind = Kind::kFuse;
    } else if (type == "Strip") {
      step.kind = Kind::kStrip;
      step.content = read_character(item.at("content"));
      step.start = item.at("start").integer(0, INT32_MAX);
      step.stop = item.at("stop").integer(0, INT32_MAX);
    } else if (type == "Metaspace") {
      step.kind = Kind::kMetaspace;
      step.content = read_character(item.at("replacement"));
      step.prepend_scheme = read_prepend_scheme(item);
    } else if (type == "BPEDecoder") {
      step.kind = Kind::kBpe;
      step.content = item.at("suffix").string();
    } else {
      item.unsupported("ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or BPEDecoder",
                       "the decoder \"" + type + "\"");
    }
    parts.decoder.push_back(std::move(step));
  });
}

void read_template(const JsonNode& item, TokenizerParts& parts) {
  std::vector<int32_t> front, behind;
  bool seen_text = false;
  const JsonNode pieces = item.at("single");
  for (size_t i = 0; i < pieces.size(); ++i) {
    const JsonNode piece = pieces.at(i);
    if (piece.has("Sequence")) {
      if (piece.at("Sequence").at("id").string() != "A") piece.fail("the sequence A");
      if (seen_text) piece.unsupported("a template with the text once", "it once more");
      seen_text = true;
      continue;
    }
    const JsonNode name = piece.at("SpecialToken").at("id");
    const JsonNode ids = item.at("special_tokens").at(name.string().c_str()).at("ids");
    for (size_t k = 0; k < ids.size(); ++k) {
      (seen_text ? behind : front).push_back(static_cast<int32_t>(ids.at(k).integer(0, kMaxId)));
    }
  }
  if (!seen_text) pieces.fail("a template with the sequence A");
  parts.ids_in_front.insert(parts.ids_in_front.begin(), front.begin(), front.end());
  parts.ids_behind.insert(parts.ids_behind.end(), behind.begin(), behind.end());
}

void read_post_processor(const JsonNode& node, TokenizerParts& parts) {
  flatten(node, "processors", 0, [&](const JsonNode& item) {
    const std::string& type = item.at("type").string();
    if (type == "ByteLevel") return;  // concerns offsets only
    if (type == "TemplateProcessing") return read_template(item, parts);
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      const auto id = [&](const char* key) {
        const JsonNode pair = item.at(key);
        if (pair.size() != 2) pair.fail("a token and its id");
        return static_cast<int32_t>(pair.at(size_t{1}).integer(0, kMaxId));
      };
      parts.ids_in_front.insert(parts.ids_in_front.begin(), id("cls"));
      parts.ids_behind.push_back(id("sep"));
      return;
    }
    item.unsupported("ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing",
                     "the post-processor \"" + type + "\"");
  });
}

void read_merges(const JsonNode& node, TokenizerParts& parts) {
  const size_t prefix = parts.settings.continuing_subword_prefix.size();
  std::string joined;
  parts.merges.reserve(node.size());
  for (size_t i = 0; i < node.size(); ++i) {
    std::string_view left, right;
    const nlohmann::json& item = node.value()[i];
    if (item.is_string()) {
      const std::string_view line = item.get_ref<const std::string&>();
      if (line.starts_with("#version")) continue;
      const size_t blank = line.find(' ');
      if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) {
        node.at(i).fail("two tokens with one blank between them");
      }
      left = line.substr(0, blank);
      right = line.substr(blank + 1);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[0].get_ref<const std::string&>();
      right = item[1].get_ref<const std::string&>();
    } else {
      node.at(i).fail("two tokens");
    }
    const auto id = [&](std::string_view token) {
      const int32_t found = parts.tokens.find(token);
      if (found == kNoToken) node.at(i).fail("tokens of model.vocab (\"" + std::string(token) + "\" is none)");
      return found;
    };
    if (right.size() < prefix) node.at(i).fail("a second token that starts with continuing_subword_prefix");
    joined.assign(left);
    joined += right.substr(prefix);
    parts.merges.push_back({id(left), id(right), id(joined)});
  }
}

void read_model(const JsonNode& node, TokenizerParts& parts) {
  const std::string type = node.string_or("type", "BPE");
  if (type != "BPE") node.unsupported("the model \"BPE\"", "the model \"" + type + "\"");
  if (node.has("dropout") && node.value()["dropout"] != 0.0)
    node.unsupported("no dropout", node.value()["dropout"].dump());
  parts.settings.ignore_merges = node.boolean_or("ignore_merges", false);
  parts.settings.byte_fallback = node.boolean_or("byte_fallback", false);
  parts.settings.fuse_unknown = node.boolean_or("fuse_unk", false);
  parts.settings.continuing_subword_prefix = node.string_or("continuing_subword_prefix", "");
  parts.settings.end_of_word_suffix = node.string_or("end_of_word_suffix", "");
  const JsonNode vocab = node.at("vocab");
  if (!vocab.value().is_object()) vocab.fail("an object from token to id");
  for (const auto& [token, id] : vocab.value().items()) {
    const JsonNode entry(id, parts.where, "model.vocab[\"" + token + "\"]");
    const auto number = static_cast<int32_t>(entry.integer(0, kMaxId));
    if (!parts.tokens.insert(token, number)) entry.fail("an id that no other token has");
  }
  read_merges(node.at("merges"), parts);
  if (node.has("unk_token")) {
    const JsonNode unknown = node.at("unk_token");
    parts.settings.unknown_id = parts.tokens.find(unknown.string());
    if (parts.settings.unknown_id == kNoToken) unknown.fail("a token of model.vocab");
  }
}

void read_added_tokens(const JsonNode& node, TokenizerParts& parts) {
  // A token that the vocabulary lacks gets the next free id, whatever the file says; a file that says
  // otherwise would mean one thing here and another to its writer.
  std::unordered_map<std::string, int32_t> seen;
  int64_t next = parts.tokens.size();
  for (size_t i = 0; i < node.size(); ++i) {
    const JsonNode item = node.at(i);
    AddedToken token;
    token.content = item.at("content").string();
    if (token.content.empty()) continue;
    token.id = static_cast<int32_t>(item.at("id").integer(0, kMaxId));
    token.single_word = item.boolean_or("single_word", false);
    token.lstrip = item.boolean_or("lstrip", false);
    token.rstrip = item.boolean_or("rstrip", false);
    token.special = item.boolean_or("special", false);
    token.normalized = item.boolean_or("normalized", !token.special);
    if (seen.contains(token.content)) item.at("content").fail("a token that is listed once");
    const int32_t known = parts.tokens.find(token.content);
    const int64_t expected = known != kNoToken ? known : next++;
    if (token.id != expected) {
      item.at("id").fail(std::to_string(expected) + (known != kNoToken ? ", as in model.vocab" : ", the next free id"));
    }
    seen[token.content] = token.id;
    parts.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

TokenizerParts read_tokenizer_json(std::string_view text, const std::string& where) {
  const nlohmann::json json = parse_json(text, where);
  TokenizerParts parts;
  parts.where = where;
  const JsonNode root(json, parts.where, "");
  const auto component = [&](const char* key) {
    static const nlohmann::json kNull;
    return root.has(key) ? root.at(key) : JsonNode(kNull, parts.where, key);
  };
  if (root.has("version") && root.at("version").string() != "1.0") root.at("version").fail("\"1.0\"");
  read_model(root.at("model"), parts);
  if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), parts);
  try {
    read_normalizer(component("normalizer"), parts);
    read_pre_tokenizer(component("pre_tokenizer"), parts);
    read_decoder(component("decoder"), parts);
  } catch (const UnsupportedError& error) {
    // A regular expression does not know its file.
    if (std::string_view(error.what()).starts_with(where)) throw;
    throw UnsupportedError(where + ": " + error.what());
  } catch (const FormatError& error) {
    if (std::string_view(error.what()).starts_with(where)) throw;
    throw FormatError(where + ": " + error.what());
  }
  read_post_processor(component("post_processor"), parts);
  return parts;
}

}  // namespace deltatrain::text
