#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "bench/tokenizer_rate.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "prepare/records.h"
#include "text/bpe_trainer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_summary.h"
#include "text/utf8.h"

namespace deltatrain::cli {

namespace {

using nlohmann::json;
using text::AddSpecialTokens;
using text::SkipSpecialTokens;
using text::Tokenizer;

struct TokenizerOptions {
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

void encode(const TokenizerOptions& options) {
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

void decode(const TokenizerOptions& options) {
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

void inspect(const TokenizerOptions& options) {
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

struct TokenizerBenchOptions {
  std::string tokenizer;
  std::vector<std::string> inputs;
  std::string format = "auto";
  std::string text_column = "text";
  int64_t max_bytes = 256'000'000;
  int64_t threads = 1;
  int64_t repeats = 5;
  bool as_json = false;
};

// Keeps documents until there are enough.
class KeptDocuments : public prepare::DocumentSink {
 public:
  explicit KeptDocuments(int64_t max_bytes) : max_bytes_(max_bytes) {}
  void document(std::string_view content) override {
    if (full()) return;
    texts.emplace_back(content);
    num_bytes_ += static_cast<int64_t>(content.size());
  }
  void skipped(const char*) override {}
  void replaced(const char*, int64_t) override {}
  bool full() const { return num_bytes_ >= max_bytes_; }

  std::vector<std::string> texts;

 private:
  int64_t max_bytes_, num_bytes_ = 0;
};

void run_tokenizer_bench(const TokenizerBenchOptions& options) {
  prepare::RecordOptions records;
  records.text_column = options.text_column;
  KeptDocuments kept(options.max_bytes);
  prepare::RecordParser parser(records);
  for (const prepare::InputFile& file : prepare::find_input_files(options.inputs, options.format).files) {
    const auto reader = prepare::open_block_reader({&file, 0, file.bytes}, records, int64_t{1} << 20);
    for (prepare::Block block; !kept.full() && reader->next(block);) parser.parse(block, kept);
  }
  if (kept.texts.empty()) throw ConfigError(error_text("", "--input", "at least one document with text", "none"));
  bench::TokenizerRate best;
  for (int64_t i = 0; i < options.repeats; ++i) {
    // Loaded anew: it remembers words.
    const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
    const auto rate = bench::time_tokenizer(tokenizer, kept.texts, static_cast<int>(options.threads));
    if (i == 0 || rate.cpu_seconds < best.cpu_seconds) best = rate;
  }
  const double megabytes = 1e-6 * static_cast<double>(best.bytes);
  const double megatokens = 1e-6 * static_cast<double>(best.tokens);
  if (options.as_json) {
    const json result = {{"documents", kept.texts.size()},
                         {"bytes", best.bytes},
                         {"tokens", best.tokens},
                         {"threads", options.threads},
                         {"cpu_seconds", best.cpu_seconds},
                         {"wall_seconds", best.wall_seconds}};
    std::printf("%s\n", result.dump().c_str());
    return;
  }
  std::printf("%.1f MB in %zu documents, %.2f million tokens, %lld threads\n", megabytes, kept.texts.size(), megatokens,
              static_cast<long long>(options.threads));
  std::printf("per second of processor time: %.1f MB, %.2f million tokens\n", megabytes / best.cpu_seconds,
              megatokens / best.cpu_seconds);
  std::printf("per second: %.1f MB, %.2f million tokens\n", megabytes / best.wall_seconds, megatokens / best.wall_seconds);
}

void add_bench_options(CLI::App& command, TokenizerBenchOptions& options) {
  command.add_option("--tokenizer", options.tokenizer, "folder with tokenizer.json, or the file itself")->required();
  command.add_option("--input", options.inputs, "text: files, folders or globs, as for prepare")->required();
  command.add_option("--format", options.format, "of the input: auto (by extension), txt, jsonl, arrow or parquet")
      ->check(CLI::IsMember({"auto", "txt", "jsonl", "arrow", "parquet"}))
      ->capture_default_str();
  command.add_option("--text-column", options.text_column, "key or column of the text")->capture_default_str();
  command.add_option("--max-bytes", options.max_bytes, "text that is read; units such as 300MB are understood")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("256MB");
  command.add_option("--threads", options.threads, "that encode side by side")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command.add_option("--repeats", options.repeats, "runs over the text; the one of least processor time counts")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  command.add_flag("--json", options.as_json, "for machines");
  command.footer("Example: deltatrain tokenizer bench --tokenizer tok --input docs.jsonl");
}

struct TokenizerTrainOptions {
  std::vector<std::string> inputs;
  std::string format = "auto";
  std::string text_column = "text";
  std::string on_invalid = "error";
  std::string out;
  int64_t vocab_size = 8192;
  int64_t min_frequency = 0;
  std::string pattern = "llama3";
  std::string bos = "<|begin_of_text|>";
  std::string eos = "<|end_of_text|>";
  std::vector<std::string> special;
  bool no_bos = false;
};

// Feeds every document to the trainer.
class TrainerSink : public prepare::DocumentSink {
 public:
  explicit TrainerSink(text::BpeTrainer& trainer) : trainer_(trainer) {}
  void document(std::string_view content) override {
    trainer_.feed(content);
    ++num_documents;
    num_bytes += static_cast<int64_t>(content.size());
  }
  void skipped(const char*) override { ++num_skipped; }
  void replaced(const char*, int64_t count) override { num_replaced += count; }

  int64_t num_documents = 0, num_bytes = 0, num_skipped = 0, num_replaced = 0;

 private:
  text::BpeTrainer& trainer_;
};

text::WordPattern word_pattern(const std::string& name) {
  if (name == "gpt2") return text::WordPattern::kGpt2;
  return name == "qwen2" ? text::WordPattern::kQwen2 : text::WordPattern::kLlama3;
}

void require_unused(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) return;
  const bool is_folder = std::filesystem::is_directory(folder, ignored);
  if (is_folder && std::filesystem::is_empty(folder, ignored)) return;
  throw ConfigError(error_text(folder, "--out", "a new or empty folder",
                               is_folder ? "one with files in it" : "a file"));
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(folder + ": cannot be created: " + error.message(), ExitCode::kEnvironment);
}

void train(const TokenizerTrainOptions& options, Reporter& reporter) {
  text::BpeTrainerOptions trainer_options;
  trainer_options.vocab_size = options.vocab_size;
  trainer_options.min_frequency = options.min_frequency;
  trainer_options.pattern = word_pattern(options.pattern);
  for (const std::string& token : {options.bos, options.eos}) trainer_options.special_tokens.push_back(token);
  for (const std::string& token : options.special) trainer_options.special_tokens.push_back(token);
  auto sorted = trainer_options.special_tokens;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end() || sorted.front().empty()) {
    throw ConfigError(error_text("--bos, --eos, --special", "", "tokens that differ and are not empty",
                                 sorted.front().empty() ? "an empty one" : "\"" + *twice + "\" twice"));
  }
  require_unused(options.out);

  prepare::RecordOptions records;
  records.text_column = options.text_column;
  if (options.on_invalid == "replace") records.on_invalid_utf8 = prepare::OnInvalidUtf8::kReplace;
  if (options.on_invalid == "skip") records.on_invalid_utf8 = prepare::OnInvalidUtf8::kSkip;
  const prepare::InputFiles inputs = prepare::find_input_files(options.inputs, options.format);
  int64_t total_bytes = 0;
  for (const prepare::InputFile& file : inputs.files) total_bytes += file.bytes;
  text::BpeTrainer trainer(trainer_options);
  TrainerSink sink(trainer);
  prepare::RecordParser parser(records);
  int64_t done_bytes = 0;
  for (const prepare::InputFile& file : inputs.files) {
    const auto reader = prepare::open_block_reader({&file, 0, file.bytes}, records, int64_t{1} << 22);
    prepare::Block block;
    while (reader->next(block)) {
      parser.parse(block, sink);
      done_bytes += block.file_bytes;
      reporter.progress("tokenizer train: words", done_bytes, total_bytes, "bytes", "");
    }
  }
  if (sink.num_documents == 0) throw ConfigError(error_text("", "--input", "at least one document with text", "none"));
  reporter.message("tokenizer", std::to_string(sink.num_documents) + " documents, " + std::to_string(sink.num_bytes) +
                                    " bytes, " + std::to_string(trainer.num_words()) + " words, " +
                                    std::to_string(trainer.num_distinct_words()) + " different");
  if (sink.num_skipped > 0) reporter.warning("tokenizer", std::to_string(sink.num_skipped) + " documents skipped");
  if (sink.num_replaced > 0) {
    reporter.warning("tokenizer", std::to_string(sink.num_replaced) + " ill-formed places replaced by U+FFFD");
  }
  if (trainer.num_long_words() > 0) {
    reporter.warning("tokenizer", std::to_string(trainer.num_long_words()) + " words of more than " +
                                      std::to_string(text::BpeTrainer::kMaxWordBytes) + " bytes left out");
  }

  text::WrittenTokenizer written;
  written.vocabulary = trainer.train(reporter);
  written.pattern = trainer_options.pattern;
  written.num_special_tokens = static_cast<int64_t>(trainer_options.special_tokens.size());
  written.bos = options.bos;
  written.eos = options.eos;
  written.bos_in_front = !options.no_bos;
  const auto num_tokens = static_cast<int64_t>(written.vocabulary.tokens.size());
  if (num_tokens < options.vocab_size) {
    reporter.warning("tokenizer", "the text has pairs for " + std::to_string(num_tokens) + " tokens only, not " +
                                      std::to_string(options.vocab_size));
  }
  make_folder(options.out);
  text::write_tokenizer(options.out, written);
  std::printf("%s: %lld tokens, %lld merges\n", options.out.c_str(), static_cast<long long>(num_tokens),
              static_cast<long long>(written.vocabulary.merges.size()));
}

void add_train_options(CLI::App& command, TokenizerTrainOptions& options) {
  command.add_option("--input", options.inputs, "text: files, folders or globs of .txt and .jsonl, also .gz and .zst")
      ->required();
  command.add_option("--out", options.out, "new folder for tokenizer.json and tokenizer_config.json")->required();
  command.add_option("--vocab-size", options.vocab_size, "tokens in all, special ones and the 256 bytes included")
      ->check(CLI::Range(int64_t{257}, int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--pattern", options.pattern, "how text is cut into words: llama3, gpt2 or qwen2")
      ->check(CLI::IsMember({"llama3", "gpt2", "qwen2"}))
      ->capture_default_str();
  command.add_option("--bos", options.bos, "token at the start of a text, id 0")->capture_default_str();
  command.add_option("--eos", options.eos, "token at the end of a document, id 1")->capture_default_str();
  command.add_flag("--no-bos", options.no_bos, "texts get no BOS in front when they are encoded");
  command.add_option("--special", options.special, "further special tokens, ids from 2 on");
  command.add_option("--min-frequency", options.min_frequency, "pairs seen less often make no token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--format", options.format, "of the input: auto (by extension), txt or jsonl")
      ->check(CLI::IsMember({"auto", "txt", "jsonl"}))
      ->capture_default_str();
  command.add_option("--text-column", options.text_column, "key of the text in a .jsonl line")->capture_default_str();
  command.add_option("--on-invalid", options.on_invalid,
                     "documents that are not UTF-8: error, replace (by U+FFFD) or skip")
      ->check(CLI::IsMember({"error", "replace", "skip"}))
      ->capture_default_str();
  command.footer("Example: deltatrain tokenizer train --input docs/*.txt --vocab-size 8192 --out tok");
}

void add_tokenizer_option(CLI::App& command, TokenizerOptions& options) {
  command.add_option("--tokenizer", options.tokenizer, "folder with tokenizer.json, or the file itself")->required();
}

}  // namespace

void add_tokenizer_command(CLI::App& app, Environment& environment) {
  auto options = std::make_shared<TokenizerOptions>();  // shared by the callbacks below
  auto train_options = std::make_shared<TokenizerTrainOptions>();
  CLI::App* group = app.add_subcommand("tokenizer", "Train, apply and examine tokenizers.");
  group->require_subcommand(1);

  CLI::App* train_command = group->add_subcommand("train", "Learn a byte-level BPE vocabulary from text.");
  add_train_options(*train_command, *train_options);
  train_command->callback([train_options, &environment] { train(*train_options, environment.reporter); });

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

  auto bench_options = std::make_shared<TokenizerBenchOptions>();
  CLI::App* bench_command = group->add_subcommand("bench", "How fast text in memory becomes token ids.");
  add_bench_options(*bench_command, *bench_options);
  bench_command->callback([bench_options] { run_tokenizer_bench(*bench_options); });

  CLI::App* inspect_command = group->add_subcommand("inspect", "What a tokenizer consists of.");
  add_tokenizer_option(*inspect_command, *options);
  inspect_command->add_option("--text", options->text, "show the tokens of this text too");
  inspect_command->add_flag("--json", options->as_json, "for machines");
  inspect_command->footer("Example: deltatrain tokenizer inspect --tokenizer tok --text 'Hello world'");
  inspect_command->callback([options] { inspect(*options); });
}

}  // namespace deltatrain::cli
