#include "text/tokenizer_summary.h"

#include "text/tokenizer_model.h"

namespace deltatrain::text {

namespace {

std::string pattern_name(const Pattern& pattern) {
  if (pattern.is_literal) return "the text \"" + pattern.text + "\"";
  if (!pattern.word_pattern) return "the expression " + pattern.text;
  switch (*pattern.word_pattern) {
    case WordPattern::kGpt2:
      return "the words of GPT-2";
    case WordPattern::kLlama3:
      return "the words of Llama 3";
    case WordPattern::kQwen2:
      return "the words of Qwen 2";
  }
  return "";
}

std::string name_of(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::kPrepend:
      return "Prepend \"" + step.content + "\"";
    case NormalizerStep::Kind::kReplace:
      return "Replace " + pattern_name(step.pattern) + " by \"" + step.content + "\"";
    case NormalizerStep::Kind::kStrip:
      return "Strip";
    case NormalizerStep::Kind::kNfc:
      return "NFC";
    case NormalizerStep::Kind::kNfd:
      return "NFD";
    case NormalizerStep::Kind::kByteLevel:
      return "ByteLevel";
  }
  return "";
}

std::string name_of(const PreTokenizerStep& step) {
  switch (step.kind) {
    case PreTokenizerStep::Kind::kSplit:
      return "Split at " + pattern_name(step.pattern);
    case PreTokenizerStep::Kind::kByteLevel:
      return std::string("ByteLevel") + (step.use_regex ? " with the words of GPT-2" : "") +
             (step.add_prefix_space ? ", a blank in front" : "");
    case PreTokenizerStep::Kind::kDigits:
      return step.individual_digits ? "Digits one by one" : "Digits";
    case PreTokenizerStep::Kind::kPunctuation:
      return "Punctuation";
    case PreTokenizerStep::Kind::kWhitespace:
      return "Whitespace";
    case PreTokenizerStep::Kind::kWhitespaceSplit:
      return "WhitespaceSplit";
    case PreTokenizerStep::Kind::kMetaspace:
      return "Metaspace";
    case PreTokenizerStep::Kind::kCharDelimiterSplit:
      return "CharDelimiterSplit at \"" + step.pattern.text + "\"";
  }
  return "";
}

std::string name_of(const DecoderStep& step) {
  switch (step.kind) {
    case DecoderStep::Kind::kByteLevel:
      return "ByteLevel";
    case DecoderStep::Kind::kReplace:
      return "Replace " + pattern_name(step.pattern) + " by \"" + step.content + "\"";
    case DecoderStep::Kind::kByteFallback:
      return "ByteFallback";
    case DecoderStep::Kind::kFuse:
      return "Fuse";
    case DecoderStep::Kind::kStrip:
      return "Strip \"" + step.content + "\"";
    case DecoderStep::Kind::kMetaspace:
      return "Metaspace";
    case DecoderStep::Kind::kBpe:
      return "BPEDecoder";
  }
  return "";
}

template <class Step>
std::string names_of(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    if (!text.empty()) text += "; ";
    text += name_of(step);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> summarize(const Tokenizer& tokenizer) {
  const TokenizerModel& model = tokenizer.model();
  const BpeSettings& settings = model.bpe().settings();
  std::string kind = model.bpe().has_byte_symbols() ? "byte-level BPE" : "BPE";
  if (settings.byte_fallback) kind += " with byte fallback";
  if (settings.ignore_merges) kind += ", whole words before merges";
  const auto named = [&](std::optional<int32_t> id) {
    return id ? tokenizer.token_text(*id) + " (" + std::to_string(*id) + ")" : std::string("none");
  };
  return {
      {"model", kind},
      {"vocab_size", std::to_string(tokenizer.vocab_size())},
      {"num_tokens", std::to_string(tokenizer.num_tokens())},
      {"num_merges", std::to_string(model.bpe().num_merges())},
      {"num_added_tokens", std::to_string(model.added_tokens().size())},
      {"num_special_tokens", std::to_string(tokenizer.special_ids().size())},
      {"normalizer", names_of(model.normalizer())},
      {"pre_tokenizer", names_of(model.pre_tokenizer())},
      {"decoder", names_of(model.decoder())},
      {"bos", named(tokenizer.bos_id())},
      {"eos", named(tokenizer.eos_id())},
      {"pad", named(tokenizer.pad_id())},
      {"special_tokens_rule", tokenizer.special_tokens_rule()},
  };
}

}  // namespace deltatrain::text
