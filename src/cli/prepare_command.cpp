#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "cli/commands.h"
#include "cli/validators.h"
#include "data/sample_source.h"
#include "prepare/prepare.h"
#include "prepare/row_conversion.h"
#include "text/tokenizer.h"

namespace deltatrain::cli {

namespace {

struct PrepareOptions {
  prepare::PrepareOptions prepare;
  std::string layout = "megatron";
  std::string tokenizer;
  bool append_eod = true;
  std::string empty;
  std::string drop_tails = "batch";
  bool convert = false;
  std::string index_form = "megatron";
  bool special_tokens = true;
  std::string txt_document = "file";
  std::string bad_documents = "stop";
  std::string invalid_utf8 = "stop";
  std::string order = "megatron";
  std::string shard;
  bool split_sentences = false;
  int64_t show_order = 0;
  data::SourceOptions source;
};

// The value that goes by this name; the command line has checked that there is one.
template <class T>
T choice(const std::string& name, const std::map<std::string, T>& values) {
  return values.at(name);
}

std::map<std::string, DataOrder> order_names() {
  return {{"sequential", DataOrder::kSequential},
          {"megatron", DataOrder::kMegatron},
          {"megatron-cyclic", DataOrder::kMegatronCyclic},
          {"torch-distributed", DataOrder::kTorchDistributed},
          {"hf-trainer", DataOrder::kHfTrainer}};
}

std::string digest_of_tokenizer(const std::string& path) {
  Sha256 sha;
  const auto add = [&](const std::filesystem::path& file) {
    const std::string bytes = read_file(file);
    sha.update(bytes.data(), bytes.size());
  };
  if (std::filesystem::is_directory(path)) {
    for (const std::string_view name : text::tokenizer_file_names()) {
      const std::filesystem::path file = std::filesystem::path(path) / name;
      if (std::filesystem::exists(file)) add(file);
    }
  } else {
    add(path);
  }
  return sha.hex();
}

prepare::TextEncoder make_encoder(const PrepareOptions& options, Reporter& reporter) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(options.tokenizer);
  const auto add =
      options.special_tokens ? text::AddSpecialTokens::kYes : text::AddSpecialTokens::kNo;
  prepare::TextEncoder encoder;
  encoder.encode = [tokenizer, add](std::string_view text, std::vector<int32_t>& ids) {
    tokenizer.encode(text, add, ids);
  };
  encoder.vocab_size = tokenizer.vocab_size();
  std::string rule =
      options.special_tokens ? tokenizer.special_tokens_rule() : "nothing around the text";
  if (options.append_eod) {
    if (!tokenizer.eos_id().has_value()) {
      throw ConfigError(error_text(options.tokenizer, "end of document",
                                   "a tokenizer that names its EOS token",
                                   "none; give --no-append-eod"));
    }
    encoder.eod_id = *tokenizer.eos_id();
    rule += fmt::format("; {} ({}) at the end of each document",
                        tokenizer.token_text(encoder.eod_id), encoder.eod_id);
  }
  encoder.identity =
      digest_of_tokenizer(options.tokenizer) + (options.special_tokens ? "+special" : "");
  encoder.description = rule;
  reporter.message("prepare", fmt::format("{} tokens; {}", encoder.vocab_size, rule));
  return encoder;
}

void parse_shard(const std::string& text, prepare::PrepareOptions& options) {
  long long index = 0;
  long long count = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "%lld/%lld%n", &index, &count, &end) != 2 ||
      end != static_cast<int>(text.size()) || index < 1 || index > count) {
    throw ConfigError(error_text("", "--shard", "i/n with i from 1 to n", "'" + text + "'"));
  }
  options.machine = index - 1;
  options.num_machines = count;
}

std::string counts_text(const prepare::Counts& counts) {
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text;
}

void run_prepare(PrepareOptions& options, Reporter& reporter) {
  if (options.split_sentences) {
    throw UnsupportedError(
        "--split-sentences: training would see single sentences in random order, each with its own "
        "BOS, since "
        "Megatron's data set shuffles sequences and not documents; prepare works on whole "
        "documents");
  }
  if (options.layout == "fla") {
    options.prepare.layout = prepare::OutputLayout::kRows;
    options.prepare.rows.seq_length = options.source.seq_length;
    options.prepare.rows.seed = options.source.seed;
    options.prepare.rows.drop_tails = choice<prepare::DropTails>(
        options.drop_tails,
        {{"batch", prepare::DropTails::kPerBatch}, {"end", prepare::DropTails::kOnce}});
  }
  prepare::RecordOptions& records = options.prepare.records;
  records.text_documents = choice<prepare::TextDocuments>(
      options.txt_document, {{"file", prepare::TextDocuments::kFile},
                             {"line", prepare::TextDocuments::kLine},
                             {"paragraph", prepare::TextDocuments::kParagraph}});
  records.on_bad_document = choice<prepare::OnBadDocument>(
      options.bad_documents,
      {{"stop", prepare::OnBadDocument::kStop}, {"skip", prepare::OnBadDocument::kSkip}});
  records.on_invalid_utf8 = choice<prepare::OnInvalidUtf8>(
      options.invalid_utf8, {{"stop", prepare::OnInvalidUtf8::kStop},
                             {"replace", prepare::OnInvalidUtf8::kReplace},
                             {"skip", prepare::OnInvalidUtf8::kSkip}});
  if (options.empty.empty()) options.empty = options.layout == "fla" ? "keep" : "skip";
  records.on_empty_text = choice<prepare::OnEmptyText>(
      options.empty,
      {{"skip", prepare::OnEmptyText::kSkip}, {"keep", prepare::OnEmptyText::kKeep}});
  if (!options.shard.empty()) parse_shard(options.shard, options.prepare);
  const prepare::TextEncoder encoder = make_encoder(options, reporter);
  const prepare::PrepareResult result =
      prepare::prepare_token_files(options.prepare, encoder, reporter);
  if (result.already_there) {
    reporter.message("prepare", "already there, from the same input and settings; nothing to do");
  }
  const std::string skipped = counts_text(result.counts.skipped);
  const std::string replaced = counts_text(result.counts.replaced);
  if (!skipped.empty()) reporter.warning("prepare", "skipped: " + skipped);
  if (!replaced.empty()) reporter.warning("prepare", "replaced by U+FFFD: " + replaced);
  fmt::print("{} documents, {} tokens\n", result.counts.documents, result.counts.tokens);
  if (options.layout == "fla" && !(result.outputs.empty() && result.rows == 0)) {
    fmt::print("{} rows of {}, {} tokens in none\n", result.rows, options.source.seq_length,
               result.dropped_tokens);
  }
  for (const prepare::OutputFile& file : result.outputs)
    fmt::print("{}  {}\n", file.sha256, file.path);
}

void run_conversion(const PrepareOptions& options, Reporter& reporter) {
  if (options.prepare.inputs.size() != 1) {
    throw ConfigError(error_text("--convert", "--input", "one folder with state.json",
                                 std::to_string(options.prepare.inputs.size()) + " inputs"));
  }
  prepare::ConversionOptions conversion;
  conversion.folder = options.prepare.inputs.front();
  conversion.out = options.prepare.out;
  conversion.overwrite = options.prepare.overwrite;
  conversion.indices = choice<formats::DocumentIndices>(
      options.index_form,
      {{"megatron", formats::DocumentIndices::kMegatron}, {"fla", formats::DocumentIndices::kFla}});
  if (!options.tokenizer.empty())
    conversion.vocab_size = text::Tokenizer::load(options.tokenizer).vocab_size();
  const prepare::ConversionResult result = prepare::convert_rows(conversion, reporter);
  fmt::print("{} rows of {}, {} tokens; {} rows read back\n", result.rows, result.row_length,
             result.rows * result.row_length, result.checked_rows);
  for (const prepare::OutputFile& file : result.outputs)
    fmt::print("{}  {}\n", file.sha256, file.path);
}

// The first samples of the order, with where each lies and how it begins.
void show_order(PrepareOptions& options) {
  data::SourceOptions& source_options = options.source;
  source_options.order = choice<DataOrder>(options.order, order_names());
  source_options.prefix = options.prepare.out;
  const auto source = data::open_sample_source(source_options);
  const auto T = static_cast<size_t>(source_options.seq_length);
  std::vector<int32_t> input_ids(T);
  std::vector<int32_t> labels(T);
  fmt::print("sample\tplace\tfirst tokens\n");
  for (int64_t sample = 0; sample < options.show_order; ++sample) {
    source->read(sample, input_ids, labels, nullptr);
    std::string first;
    for (size_t t = 0; t < std::min<size_t>(T, 8); ++t)
      first += fmt::format("{}{}", t == 0 ? "" : " ", input_ids[t]);
    fmt::print("{}\t{}\t{}\n", sample, source->describe(sample), first);
  }
}

}  // namespace

void add_prepare_command(CLI::App& app, Environment& environment) {
  const auto options = std::make_shared<PrepareOptions>();
  prepare::PrepareOptions& prepare_options = options->prepare;
  prepare::RecordOptions& records = prepare_options.records;
  prepare_options.num_workers = std::max(1U, std::thread::hardware_concurrency());
  options->source.seq_length = 2048;
  options->source.seed = 42;

  CLI::App* command = app.add_subcommand("prepare", "Raw text to training tokens");
  command->add_option("--input", prepare_options.inputs,
                      "Files, folders or globs: .txt, .jsonl or .json, plain or with .gz or .zst, "
                      ".arrow, .parquet");
  command->add_option("--tokenizer", options->tokenizer, "Folder with tokenizer.json, or the file");
  command
      ->add_option(
          "--out", prepare_options.out,
          "Prefix of the outputs: PREFIX_text_document.bin and .idx; with --layout fla the "
          "folder of the rows")
      ->required();
  command
      ->add_option("--layout", options->layout,
                   "megatron: documents in .bin and .idx; fla: rows of --seq-length in Arrow files")
      ->check(CLI::IsMember({"megatron", "fla"}))
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--format", prepare_options.format,
                   "What all inputs are, whatever their names: auto, txt, jsonl, arrow, parquet")
      ->check(CLI::IsMember({"auto", "txt", "jsonl", "arrow", "parquet"}))
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--text-column", records.text_column,
                   "Key of the text in a line of JSON, or column of a table")
      ->capture_default_str();
  command
      ->add_option("--txt-document", options->txt_document,
                   "What one document is in a text file: file, line, paragraph")
      ->check(CLI::IsMember({"file", "line", "paragraph"}))
      ->capture_default_str()
      ->type_name("NAME");
  const CLI::Option* append_eod = command->add_flag(
      "--append-eod,!--no-append-eod", options->append_eod,
      "End each document with the tokenizer's EOS (default: yes; no with --layout fla)");
  command->add_flag("--special-tokens,!--no-special-tokens", options->special_tokens,
                    "Let the tokenizer put BOS and the like around each text (default: yes)");
  command
      ->add_option("--workers", prepare_options.num_workers,
                   "Threads; the outputs do not depend on it")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command
      ->add_option(
          "--partitions", prepare_options.num_partitions,
          "Deal the records in turn to this many token files PREFIX_0_..., and merge those")
      ->capture_default_str();
  command
      ->add_option("--valid-fraction", prepare_options.valid_fraction,
                   "Share of the documents, spread evenly, that goes to PREFIX_valid_text_document")
      ->capture_default_str();
  command
      ->add_option("--bad-documents", options->bad_documents,
                   "A record without text, with broken JSON, binary or too large: stop, skip")
      ->check(CLI::IsMember({"stop", "skip"}))
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--invalid-utf8", options->invalid_utf8,
                   "Text that is not UTF-8: stop, replace (by U+FFFD), skip")
      ->check(CLI::IsMember({"stop", "replace", "skip"}))
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--empty", options->empty,
                   "Empty texts: skip (default), keep (default with --layout fla)")
      ->check(CLI::IsMember({"skip", "keep"}))
      ->type_name("NAME");
  command
      ->add_option("--max-document-bytes", records.max_document_bytes,
                   "Larger records are bad documents; units such as 300MB are understood")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1GB")
      ->type_name("SIZE");
  command->add_option("--shard", options->shard,
                      "i/n: only the i-th of n machines' parts, merged later with --merge");
  command->add_flag("--merge", prepare_options.merge,
                    "Only put together the parts that --shard runs have made");
  command->add_flag("--overwrite", prepare_options.overwrite,
                    "Remove earlier outputs and parts of PREFIX first");
  command
      ->add_option(
          "--drop-tails", options->drop_tails,
          "For --layout fla: where tokens that fill no row are dropped: after each batch of "
          "documents (batch), once at the end (end)")
      ->check(CLI::IsMember({"batch", "end"}))
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--map-batch-size", prepare_options.rows.map_batch_size,
                   "For --layout fla: documents in such a batch")
      ->capture_default_str();
  command
      ->add_option("--map-processes", prepare_options.rows.map_processes,
                   "For --layout fla: contiguous parts of the documents that are cut into batches, "
                   "and the least number of files")
      ->capture_default_str();
  command->add_flag("--shuffle,!--no-shuffle", prepare_options.rows.shuffle,
                    "For --layout fla: put the documents in numpy's order for --seed first "
                    "(default: yes)");
  command->add_flag("--convert", options->convert,
                    "Tokenize nothing: rows in the folder --input to PREFIX.bin and PREFIX.idx");
  command
      ->add_option("--index-form", options->index_form,
                   "For --convert: document indices from 0 (megatron), or from 1 as FLA's script "
                   "writes them (fla)")
      ->check(CLI::IsMember({"megatron", "fla"}))
      ->capture_default_str()
      ->type_name("NAME");
  command->add_flag("--split-sentences", options->split_sentences, "Refused, with the reason");
  command->add_option("--show-order", options->show_order,
                      "Prepare nothing; print the first N samples of the token files at PREFIX");
  command->add_option("--order", options->order, "For --show-order: as data.order in a recipe")
      ->check(CLI::IsMember(order_names()))
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--split", options->source.split,
                      "For --show-order: shares such as 99,1,0; the first is shown");
  command
      ->add_option("--micro-batch-size", options->source.micro_batch_size,
                   "For --show-order: the orders that shuffle each epoch depend on it")
      ->capture_default_str();
  command->add_option("--ranks", options->source.num_ranks, "For --show-order: likewise")
      ->capture_default_str();
  command
      ->add_option("--seq-length", options->source.seq_length,
                   "For --layout fla and --show-order: tokens in a row or sample")
      ->capture_default_str();
  command->add_option("--seed", options->source.seed, "For --layout fla and --show-order")
      ->capture_default_str();
  command
      ->add_option(
          "--num-samples", options->source.num_samples,
          "For --show-order: samples of the whole run, on which the order depends; 0: one epoch")
      ->capture_default_str();
  command->footer(
      "Example: deltatrain prepare --input corpus/ --tokenizer tokenizer.json --out data/corpus "
      "--valid-fraction 0.01");
  command->callback([options, append_eod, &environment] {
    if (append_eod->count() == 0) options->append_eod = options->layout == "megatron";
    if (options->show_order > 0) return show_order(*options);
    if (options->convert) return run_conversion(*options, environment.reporter);
    if (options->tokenizer.empty()) {
      throw ConfigError(error_text("", "--tokenizer", "a folder or file", "none"));
    }
    run_prepare(*options, environment.reporter);
  });
}

}  // namespace deltatrain::cli
