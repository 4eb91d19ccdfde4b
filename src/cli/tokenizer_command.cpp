#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "cli/commands.h"
#include "text/tokenizer.h"
#include "text/tokenizer_summary.h"
#include "text/utf8.h"

namespace deltatrain::cli {

namespace {

using nlohmann::json;
using text::AddSpecialTokens;
using text::SkipSpecialTokens;
using text::Tokenizer;

struct Options {
  std::string tokenizer;
  std::string input = "-";
  bool jsonl = false;
  bool no_special_tokens = false;
  bool skip_special_tokens = false;
  std::string on_invalid = "error";
  bool as_json = false;
  std::string text;
};

std::string read_input(const std::string& name) {
  if (name != "-") return read_file(name);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::string shown(const std::string& name) { return name == "-" ? "standard input" : name; }

// The text to encode: well-formed as it is, or made so if the user asked for that.
std::string checked(std::string content, const std::string& where, const std::string& on_invalid) {
  const size_t at = text::find_ill_formed_utf8(content);
  if (at == std::string::npos) return content;
  if (on_invalid == "replace") return text::replace_ill_formed_utf8(content);
  char byte[8];
  std::snprintf(byte, sizeof byte, "%02X", static_cast<unsigned>(static_cast<unsigned char>(content[at])));
  throw FormatError(error_text(where + ": byte " + std::to_string(at), "", "UTF-8",
                               std::string("the byte ") + byte + " (--on-invalid replace reads it as U+FFFD)"));
}

template <class Function>
void for_each_line(const std::string& content, const std::string& where, const Function& function) {
  size_t begin = 0;
  for (int64_t number = 1; begin < content.size(); ++number) {
    size_t end = content.find('\n', begin);
    if (end == std::string::npos) end = content.size();
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    if (!line.empty()) function(line, where + ":" + std::to_string(number));
    begin = end + 1;
  }
}

json parse_line(std::string_view line, const std::string& where) {
  json value = json::parse(line, nullptr, false);
  if (value.is_discarded()) throw FormatError(error_text(where, "", "one JSON value", "something else"));
  return value;
}

void encode(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  const auto add = options.no_special_tokens ? AddSpecialTokens::kNo : AddSpecialTokens::kYes;
  const std::string where = shown(options.input);
  const std::string content = checked(read_input(options.input), where, options.on_invalid);
  std::string out;
  if (options.jsonl) {
    for_each_line(content, where, [&](std::string_view line, const std::string& at) {
      json value = parse_line(line, at);
      if (value.is_object() && value.contains("text")) value = json(value["text"]);
      if (!value.is_string()) throw FormatError(error_text(at, "", "a string or an object with \"text\"", value.dump()));
      out += json(tokenizer.encode(value.get_ref<const std::string&>(), add)).dump() + "\n";
    });
  } else {
    for (const int32_t id : tokenizer.encode(content, add)) {
      if (!out.empty()) out += ' ';
      out += std::to_string(id);
    }
    out += '\n';
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
}

// Ids separated by blanks, commas or line ends; brackets are ignored.
std::vector<int32_t> parse_ids(std::string content, const std::string& where) {
  for (char& c : content) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::vector<int32_t> ids;
  const char* p = content.c_str();
  const char* const end = p + content.size();
  while (true) {
    while (p < end && std::isspace(static_cast<unsigned char>(*p)) != 0) ++p;
    if (p == end) return ids;
    char* behind = nullptr;
    errno = 0;
    const long value = std::strtol(p, &behind, 10);
    if (behind == p || errno != 0 || value < 0 || value > INT32_MAX) {
      throw FormatError(error_text(where + ": byte " + std::to_string(p - content.c_str()), "", "a token id",
                                   "\"" + std::string(p, std::min<size_t>(12, static_cast<size_t>(end - p))) + "\""));
    }
    ids.push_back(static_cast<int32_t>(value));
    p = behind;
  }
}

void decode(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  const auto skip = options.skip_special_tokens ? SkipSpecialTokens::kYes : SkipSpecialTokens::kNo;
  const std::string where = shown(options.input);
  const std::string content = read_input(options.input);
  std::string out;
  if (options.jsonl) {
    for_each_line(content, where, [&](std::string_view line, const std::string& at) {
      out += json(tokenizer.decode(parse_ids(std::string(line), at), skip)).dump() + "\n";
    });
  } else {
    out = tokenizer.decode(parse_ids(content, where), skip);
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
}

// Bytes as JSON would show them, without the quotes.
std::string visible(const std::string& bytes) {
  const std::string quoted = json(bytes).dump(-1, ' ', false, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

void inspect(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  const auto summary = text::summarize(tokenizer);
  std::vector<int32_t> ids;
  if (!options.text.empty()) ids = tokenizer.encode(options.text, AddSpecialTokens::kYes);
  if (options.as_json) {
    json result;
    for (const auto& [name, value] : summary) {
      const bool number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
      result[name] = number ? json(std::stoll(value)) : json(value);
    }
    const auto id_or_null = [](std::optional<int32_t> id) { return id ? json(*id) : json(); };
    result["bos_id"] = id_or_null(tokenizer.bos_id());
    result["eos_id"] = id_or_null(tokenizer.eos_id());
    result["pad_id"] = id_or_null(tokenizer.pad_id());
    if (!options.text.empty()) {
      result["tokens"] = json::array();
      for (const int32_t id : ids) result["tokens"].push_back({{"id", id}, {"token", tokenizer.token_text(id)}});
    }
    std::printf("%s\n", result.dump(2).c_str());
    return;
  }
  for (const auto& [name, value] : summary) std::printf("%-20s %s\n", name.c_str(), value.c_str());
  if (!ids.empty()) std::printf("\n%8s  %s\n", "id", "token");
  for (const int32_t id : ids) std::printf("%8d  %s\n", id, visible(tokenizer.token_bytes(id)).c_str());
}

void add_tokenizer_option(CLI::App& command, Options& options) {
  command.add_option("--tokenizer", options.tokenizer, "folder with tokenizer.json, or the file itself")->required();
}

}  // namespace

void add_tokenizer_command(CLI::App& app, Environment&) {
  auto options = std::make_shared<Options>();  // shared by the callbacks below
  CLI::App* group = app.add_subcommand("tokenizer", "Train, apply and examine tokenizers.");
  group->require_subcommand(1);

  CLI::App* encode_command = group->add_subcommand("encode", "Text to token ids.");
  add_tokenizer_option(*encode_command, *options);
  encode_command->add_option("--input", options->input, "file with UTF-8 text; - is standard input")
      ->capture_default_str();
  encode_command->add_flag("--jsonl", options->jsonl,
                           "each line is a JSON string, or an object whose \"text\" is one; "
                           "each output line is a list of ids");
  encode_command->add_flag("--no-special-tokens", options->no_special_tokens,
                           "without what the tokenizer puts around a text, such as BOS");
  encode_command->add_option("--on-invalid", options->on_invalid, "bytes that are not UTF-8: error or replace by U+FFFD")
      ->check(CLI::IsMember({"error", "replace"}))
      ->capture_default_str();
  encode_command->footer("Example: deltatrain tokenizer encode --tokenizer tok --input story.txt");
  encode_command->callback([options] { encode(*options); });

  CLI::App* decode_command = group->add_subcommand("decode", "Token ids to text.");
  add_tokenizer_option(*decode_command, *options);
  decode_command->add_option("--input", options->input, "file with ids; - is standard input")->capture_default_str();
  decode_command->add_flag("--jsonl", options->jsonl, "each line is a list of ids; each output line is a JSON string");
  decode_command->add_flag("--skip-special-tokens", options->skip_special_tokens, "leave special tokens out");
  decode_command->footer("Example: echo 9906 1917 | deltatrain tokenizer decode --tokenizer tok");
  decode_command->callback([options] { decode(*options); });

  CLI::App* inspect_command = group->add_subcommand("inspect", "What a tokenizer consists of.");
  add_tokenizer_option(*inspect_command, *options);
  inspect_command->add_option("--text", options->text, "show the tokens of this text too");
  inspect_command->add_flag("--json", options->as_json, "for machines");
  inspect_command->footer("Example: deltatrain tokenizer inspect --tokenizer tok --text 'Hello world'");
  inspect_command->callback([options] { inspect(*options); });
}

}  // namespace deltatrain::cli
