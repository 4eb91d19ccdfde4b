#include "config/recipe_schema.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "base/error.h"

namespace deltatrain {

namespace {

constexpr int64_t kAny = int64_t{1} << 62;

// Reading of scalars

std::optional<int64_t> to_integer(const YamlNode& node) {
  if (!node.is_plain()) return std::nullopt;
  // 010 is ten to some readers of YAML and eight to others.
  const size_t digits = node.text.find_first_not_of('-');
  if (digits != std::string::npos && node.text[digits] == '0' && node.text.size() > digits + 1)
    return std::nullopt;
  int64_t value = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<double> to_number(const YamlNode& node) {
  if (!node.is_plain()) return std::nullopt;
  double value = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Replaces ${NAME} by environment variables.
std::string expand_variables(const std::string& text) {
  std::string expanded;
  size_t from = 0;
  for (;;) {
    const size_t start = text.find("${", from);
    expanded += text.substr(from, start - from);
    if (start == std::string::npos) return expanded;
    const size_t end = text.find('}', start);
    const std::string name =
        end == std::string::npos ? text.substr(start + 2) : text.substr(start + 2, end - start - 2);
    const bool is_name =
        !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
            std::string::npos;
    if (end == std::string::npos || !is_name) {
      throw ConfigError(error_text("", "", "${NAME} with the name of an environment variable",
                                   quoted_text(text)));
    }
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw ConfigError(
          error_text("", "", "the environment variable " + name + " to be set", quoted_text(text)));
    }
    // Otherwise the printed recipe would not be read back as it is.
    if (std::string_view(value).find("${") != std::string_view::npos) {
      throw ConfigError(
          error_text("", "", "a value of " + name + " without ${", quoted_text(value)));
    }
    expanded += value;
    from = end + 1;
  }
}

// Rows
//
// `get` returns a reference to the field in a Recipe or const Recipe.

bool always(const Recipe&) { return true; }
bool has_mla(const Recipe& recipe) { return recipe.model.attn.has_value(); }
bool is_gdn(const Recipe& recipe) { return recipe.model.family == ModelFamily::kGatedDeltaNet; }
bool is_kda(const Recipe& recipe) { return recipe.model.family == ModelFamily::kKda; }

RecipeField row(const char* key, std::string type, const char* description) {
  RecipeField field;
  field.key = key;
  field.type = std::move(type);
  field.description = description;
  field.applies = always;
  return field;
}

std::string range_text(int64_t low, int64_t high) {
  if (high < kAny) return fmt::format("a whole number from {} to {}", low, high);
  return fmt::format("a whole number >= {}", low);
}

template <class Get>
RecipeField integer(const char* key, int64_t low, int64_t high, Get get, const char* description) {
  RecipeField field = row(key, range_text(low, high), description);
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    const auto value = to_integer(node);
    if (!value || *value < low || *value > high) return false;
    get(recipe) = static_cast<std::remove_reference_t<decltype(get(recipe))>>(*value);
    return true;
  };
  field.print = [=](const Recipe& recipe) { return std::to_string(get(recipe)); };
  return field;
}

template <class Get>
RecipeField optional_integer(const char* key, int64_t low, Get get, const char* description) {
  RecipeField field = row(key, "null or " + range_text(low, kAny), description);
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    const auto value = to_integer(node);
    if (!node.is_null() && (!value || *value < low)) return false;
    get(recipe) = value;
    return true;
  };
  field.print = [=](const Recipe& recipe) {
    const auto& value = get(recipe);
    return value ? std::to_string(*value) : "null";
  };
  return field;
}

enum class Bound : uint8_t { kNone, kPositive, kNotNegative, kBelowOne };

bool holds(Bound bound, double value) {
  switch (bound) {
    case Bound::kNone:
      return true;
    case Bound::kPositive:
      return value > 0;
    case Bound::kNotNegative:
      return value >= 0;
    case Bound::kBelowOne:
      return value >= 0 && value < 1;
  }
  return false;
}

std::string bound_text(Bound bound) {
  switch (bound) {
    case Bound::kNone:
      return "a number";
    case Bound::kPositive:
      return "a number > 0";
    case Bound::kNotNegative:
      return "a number >= 0";
    case Bound::kBelowOne:
      return "a number >= 0 and < 1";
  }
  return "";
}

template <class Get>
RecipeField number(const char* key, Bound bound, Get get, const char* description) {
  RecipeField field = row(key, bound_text(bound), description);
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    const auto value = to_number(node);
    if (!value || !holds(bound, *value)) return false;
    get(recipe) = *value;
    return true;
  };
  field.print = [=](const Recipe& recipe) { return fmt::format("{}", get(recipe)); };
  return field;
}

template <class Get>
RecipeField boolean(const char* key, Get get, const char* description) {
  RecipeField field = row(key, "true or false", description);
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    if (!node.is_plain() || (node.text != "true" && node.text != "false")) return false;
    get(recipe) = node.text == "true";
    return true;
  };
  field.print = [=](const Recipe& recipe) { return std::string(get(recipe) ? "true" : "false"); };
  return field;
}

// Names in the order of the enumerators.
template <class Get>
RecipeField choice(const char* key, std::vector<std::string> names, Get get,
                   const char* description) {
  RecipeField field = row(key, fmt::format("one of {}", fmt::join(names, ", ")), description);
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    for (size_t i = 0; node.is_scalar() && i < names.size(); ++i) {
      if (node.text != names[i]) continue;
      get(recipe) = static_cast<std::remove_reference_t<decltype(get(recipe))>>(i);
      return true;
    }
    return false;
  };
  field.print = [=](const Recipe& recipe) { return names[static_cast<size_t>(get(recipe))]; };
  return field;
}

bool is_text(const YamlNode& node) {
  return node.is_scalar() && (node.quoted || !looks_typed(node.text));
}

template <class Get>
RecipeField path(const char* key, Get get, const char* description) {
  RecipeField field = row(key, "a path", description);
  field.is_text = true;
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    if (!is_text(node)) return false;
    get(recipe) = expand_variables(node.text);
    return true;
  };
  field.print = [=](const Recipe& recipe) { return yaml_string(get(recipe)); };
  return field;
}

template <class Get>
RecipeField optional_text(const char* key, const char* expected, Get get, const char* description) {
  RecipeField field = row(key, expected, description);
  field.is_text = true;
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    get(recipe).reset();
    if (node.is_null()) return true;
    if (!is_text(node) || node.text.empty()) return false;
    get(recipe) = node.text;
    return true;
  };
  field.print = [=](const Recipe& recipe) {
    const auto& value = get(recipe);
    return value ? yaml_string(*value) : "null";
  };
  return field;
}

template <class Get>
RecipeField optional_path(const char* key, Get get, const char* description) {
  RecipeField field = row(key, "null or a path", description);
  field.is_text = true;
  field.read = [=](const YamlNode& node, Recipe& recipe) {
    get(recipe).reset();
    if (node.is_null()) return true;
    if (!is_text(node) || node.text.empty()) return false;
    get(recipe) = expand_variables(node.text);
    return true;
  };
  field.print = [=](const Recipe& recipe) {
    const auto& value = get(recipe);
    return value ? yaml_string(*value) : "null";
  };
  return field;
}

RecipeField required(RecipeField field) {
  field.required = true;
  return field;
}

RecipeField only(bool (*applies)(const Recipe&), RecipeField field) {
  field.applies = applies;
  return field;
}

RecipeField absent_as(const char* other_key, RecipeField field) {
  field.default_from = other_key;
  return field;
}

RecipeField harmless(RecipeField field) {
  field.changes_result = false;
  return field;
}

// An expression that names one field, as a function on Recipe and const Recipe alike.
// NOLINTNEXTLINE(bugprone-macro-parentheses): a member access, which parentheses would break
#define DELTATRAIN_FIELD(expression) \
  [](auto& r) -> auto& { return r.expression; }

RecipeField mla_layers() {
  RecipeField field =
      row("model.attn.layers", "a list of block numbers", "Blocks, from 0, that attend instead.");
  field.read = [](const YamlNode& node, Recipe& recipe) {
    if (!node.is_list()) return false;
    std::vector<int64_t>& layers = recipe.model.attn->layers;
    layers.clear();
    for (const YamlNode& item : node.items) {
      const auto layer = to_integer(item);
      if (!layer) return false;
      layers.push_back(*layer);
    }
    return true;
  };
  field.print = [](const Recipe& recipe) {
    return fmt::format("[{}]", fmt::join(recipe.model.attn->layers, ", "));
  };
  return field;
}

RecipeField lower_bound() {
  RecipeField field =
      row("model.lower_bound", "null or a number < 0",
          "KDA: log decay in (lower_bound, 0) through a sigmoid instead of a softplus.");
  field.read = [](const YamlNode& node, Recipe& recipe) {
    recipe.model.lower_bound = to_number(node);
    return node.is_null() || (recipe.model.lower_bound && *recipe.model.lower_bound < 0);
  };
  field.print = [](const Recipe& recipe) {
    return recipe.model.lower_bound ? fmt::format("{}", *recipe.model.lower_bound)
                                    : std::string("null");
  };
  return field;
}

std::vector<RecipeField> model_fields() {
  const int64_t widest = int64_t{1} << 20;
  return {
      required(choice("model.model_type", {"gated_deltanet", "kda"}, DELTATRAIN_FIELD(model.family),
                      "Token mixer of the blocks: Gated DeltaNet or Kimi Delta Attention.")),
      required(integer("model.vocab_size", 2, (int64_t{1} << 31) - 1,
                       DELTATRAIN_FIELD(model.vocab_size),
                       "Rows of the embedding; every token id of the data is below it.")),
      required(integer("model.hidden_size", 1, widest, DELTATRAIN_FIELD(model.hidden_size),
                       "Width of the residual stream.")),
      required(integer("model.intermediate_size", 1, widest,
                       DELTATRAIN_FIELD(model.intermediate_size),
                       "Width of the gated feed-forward layer.")),
      required(integer("model.num_hidden_layers", 1, 4096,
                       DELTATRAIN_FIELD(model.num_hidden_layers),
                       "Blocks, each a token mixer and a feed-forward layer.")),
      required(integer("model.num_heads", 1, widest, DELTATRAIN_FIELD(model.num_heads),
                       "Query and key heads.")),
      absent_as("model.num_heads",
                integer("model.num_v_heads", 1, widest, DELTATRAIN_FIELD(model.num_v_heads),
                        "Value heads, a multiple of num_heads.")),
      required(integer("model.head_dim", 1, widest, DELTATRAIN_FIELD(model.head_dim),
                       "Width of queries and keys per head.")),
      required(number("model.expand_v", Bound::kPositive, DELTATRAIN_FIELD(model.expand_v),
                      "Width of values per head is head_dim * expand_v.")),
      integer("model.conv_size", 1, 64, DELTATRAIN_FIELD(model.conv_size),
              "Tokens that a short convolution sees."),
      boolean("model.use_short_conv", DELTATRAIN_FIELD(model.use_short_conv),
              "Short convolutions on queries, keys and values; only true is supported."),
      only(is_gdn, boolean("model.use_gate", DELTATRAIN_FIELD(model.use_gate),
                           "Gated DeltaNet: output gate.")),
      boolean("model.allow_neg_eigval", DELTATRAIN_FIELD(model.allow_neg_eigval),
              "Writing strength beta in (0, 2) instead of (0, 1)."),
      only(is_kda, boolean("model.safe_gate", DELTATRAIN_FIELD(model.safe_gate),
                           "KDA: A_log starts at 0; needs lower_bound from -5.")),
      only(is_kda, lower_bound()),
      number("model.norm_eps", Bound::kPositive, DELTATRAIN_FIELD(model.norm_eps),
             "Epsilon of every norm of the blocks and of the final norm."),
      number("model.initializer_range", Bound::kPositive, DELTATRAIN_FIELD(model.initializer_range),
             "Standard deviation of initial weights."),
      boolean("model.tie_word_embeddings", DELTATRAIN_FIELD(model.tie_word_embeddings),
              "Output head and embedding are one matrix."),
      absent_as("train.seq_length",
                harmless(integer("model.max_position_embeddings", 1, kAny,
                                 DELTATRAIN_FIELD(model.max_position_embeddings),
                                 "Written to exported models; nothing here depends on it."))),
      harmless(optional_integer("model.bos_token_id", 0, DELTATRAIN_FIELD(model.bos_token_id),
                                "Written to exported models.")),
      harmless(optional_integer("model.eos_token_id", 0, DELTATRAIN_FIELD(model.eos_token_id),
                                "Written to exported models; ends generated text.")),
      harmless(optional_integer("model.pad_token_id", 0, DELTATRAIN_FIELD(model.pad_token_id),
                                "Written to exported models.")),
      only(has_mla, required(mla_layers())),
      only(has_mla, required(integer("model.attn.num_heads", 1, widest,
                                     DELTATRAIN_FIELD(model.attn->num_heads), "Attention heads."))),
      only(has_mla,
           optional_integer("model.attn.q_lora_rank", 1, DELTATRAIN_FIELD(model.attn->q_lora_rank),
                            "Rank of the query projection; null: one full matrix.")),
      only(has_mla, required(integer("model.attn.kv_lora_rank", 1, widest,
                                     DELTATRAIN_FIELD(model.attn->kv_lora_rank),
                                     "Rank of the key and value projection."))),
      only(has_mla, required(integer("model.attn.qk_nope_head_dim", 1, widest,
                                     DELTATRAIN_FIELD(model.attn->qk_nope_head_dim),
                                     "Width per head of queries and keys without position."))),
      only(has_mla, required(integer("model.attn.qk_rope_head_dim", 2, widest,
                                     DELTATRAIN_FIELD(model.attn->qk_rope_head_dim),
                                     "Width per head of their part with rotary position, even."))),
      only(has_mla, required(integer("model.attn.v_head_dim", 1, widest,
                                     DELTATRAIN_FIELD(model.attn->v_head_dim),
                                     "Width of values per head."))),
      only(has_mla,
           number("model.attn.rope_theta", Bound::kPositive,
                  DELTATRAIN_FIELD(model.attn->rope_theta), "Base of the rotary frequencies.")),
      only(has_mla,
           number("model.attn.norm_eps", Bound::kPositive, DELTATRAIN_FIELD(model.attn->norm_eps),
                  "Epsilon of the norms on the ranks.")),
      only(has_mla, boolean("model.attn.double_norms", DELTATRAIN_FIELD(model.attn->double_norms),
                            "A second norm behind each norm on a rank, as Megatron has under "
                            "Transformer Engine; such a model has no Hugging Face form.")),
  };
}

std::vector<RecipeField> training_fields() {
  return {
      path(
          "data.train", DELTATRAIN_FIELD(data.train),
          "Prefix of the .bin and .idx files to train on; several, each with a weight before it or "
          "none; or, for orders of rows, a folder of Arrow files."),
      harmless(optional_path("data.valid", DELTATRAIN_FIELD(data.valid),
                             "Prefix of the files to validate on.")),
      harmless(path("data.tokenizer", DELTATRAIN_FIELD(data.tokenizer),
                    "Tokenizer folder or file, copied into exported models.")),
      choice(
          "data.order",
          {"sequential", "megatron", "megatron-cyclic", "torch-distributed", "hf-trainer"},
          DELTATRAIN_FIELD(data.order),
          "Order of the samples: as stored, as Megatron's GPTDataset shuffles them, that with its "
          "random sampler on top, or rows as Flash Linear Attention's trainer deals them."),
      optional_text("data.split", "null or shares such as 99,1,0", DELTATRAIN_FIELD(data.split),
                    "Shares of `train` for training, validation and test, as Megatron's split."),
      boolean("data.eod_mask_loss", DELTATRAIN_FIELD(data.eod_mask_loss),
              "No loss for what follows model.eos_token_id."),
      boolean("data.packed_documents", DELTATRAIN_FIELD(data.packed_documents),
              "Recurrent state, convolution and attention restart where documents start, and no "
              "label crosses their borders."),
      required(number("optimizer.lr", Bound::kPositive, DELTATRAIN_FIELD(optimizer.lr),
                      "Peak learning rate.")),
      number("optimizer.min_lr", Bound::kNotNegative, DELTATRAIN_FIELD(optimizer.min_lr),
             "Learning rate at the end of the decay and after."),
      number("optimizer.adam_beta1", Bound::kBelowOne, DELTATRAIN_FIELD(optimizer.adam_beta1),
             "Decay of the first moment."),
      number("optimizer.adam_beta2", Bound::kBelowOne, DELTATRAIN_FIELD(optimizer.adam_beta2),
             "Decay of the second moment."),
      number("optimizer.adam_eps", Bound::kPositive, DELTATRAIN_FIELD(optimizer.adam_eps),
             "Added to the root of the second moment."),
      number("optimizer.weight_decay", Bound::kNotNegative,
             DELTATRAIN_FIELD(optimizer.weight_decay), "Decoupled weight decay."),
      number("optimizer.clip_grad", Bound::kNotNegative, DELTATRAIN_FIELD(optimizer.clip_grad),
             "Largest norm of the gradient, over all parameters; 0: no clipping."),
      choice("optimizer.decay_groups", {"megatron", "hf", "megatron-exact"},
             DELTATRAIN_FIELD(optimizer.decay_groups),
             "What decays: weights of two and more dimensions, never A_log, dt_bias, norms and "
             "biases (megatron); "
             "as recent Hugging Face trainers do it, A_log and the norms on MLA's ranks too (hf); "
             "as Megatron does "
             "it, KDA's A_log too (megatron-exact)."),
      integer("schedule.lr_warmup_iters", 0, kAny, DELTATRAIN_FIELD(schedule.lr_warmup_iters),
              "Steps of linear warm-up from 0."),
      absent_as(
          "train.train_iters",
          integer("schedule.lr_decay_iters", 1, kAny, DELTATRAIN_FIELD(schedule.lr_decay_iters),
                  "Step at which the decay ends, counted from 0, warm-up included.")),
      choice("schedule.lr_decay_style", {"constant", "linear", "cosine"},
             DELTATRAIN_FIELD(schedule.lr_decay_style), "From lr to min_lr; constant stays at lr."),
      required(integer("train.train_iters", 1, kAny, DELTATRAIN_FIELD(train.train_iters),
                       "Optimizer steps.")),
      required(integer("train.micro_batch_size", 1, 1 << 20,
                       DELTATRAIN_FIELD(train.micro_batch_size),
                       "Sequences that one rank computes at a time.")),
      required(
          integer("train.global_batch_size", 1, 1 << 30, DELTATRAIN_FIELD(train.global_batch_size),
                  "Sequences per optimizer step, a multiple of micro_batch_size times ranks.")),
      required(integer("train.seq_length", 1, 1 << 30, DELTATRAIN_FIELD(train.seq_length),
                       "Tokens per sequence.")),
      integer("train.seed", 0, kAny, DELTATRAIN_FIELD(train.seed),
              "Seed of initial weights and of the data order."),
      choice("train.precision", {"f32", "bf16"}, DELTATRAIN_FIELD(train.precision),
             "Weights and activations in computation; masters and optimizer state are always f32."),
      choice("train.on_nonfinite", {"stop", "skip"}, DELTATRAIN_FIELD(train.on_nonfinite),
             "At a loss or gradient that is not finite: end with exit code 3, or leave the step "
             "out and count it."),
      harmless(integer("train.eval_interval", 0, kAny, DELTATRAIN_FIELD(train.eval_interval),
                       "Steps between validations; 0: only at the end.")),
      harmless(integer("train.eval_iters", 0, kAny, DELTATRAIN_FIELD(train.eval_iters),
                       "Global batches per validation.")),
      boolean("train.fp32_residual_connection", DELTATRAIN_FIELD(train.fp32_residual_connection),
              "Residual stream and its gradient in f32 although the precision is bf16."),
      integer("parallel.loss_chunk_rows", 0, kAny, DELTATRAIN_FIELD(parallel.loss_chunk_rows),
              "Rows of logits that exist at a time; 0: chosen for the device."),
      boolean(
          "parallel.use_distributed_optimizer",
          DELTATRAIN_FIELD(parallel.use_distributed_optimizer),
          "ZeRO-1: each rank keeps and updates its part of the optimizer's state (with bf16 also "
          "of the masters)."),
      harmless(boolean("parallel.overlap_grad_reduce",
                       DELTATRAIN_FIELD(parallel.overlap_grad_reduce),
                       "Sum gradients over ranks while the backward pass goes on.")),
      harmless(boolean("parallel.overlap_param_gather",
                       DELTATRAIN_FIELD(parallel.overlap_param_gather),
                       "With use_distributed_optimizer: gather new weights while the next forward "
                       "pass goes on.")),
      integer("parallel.ddp_bucket_size", 1, kAny, DELTATRAIN_FIELD(parallel.ddp_bucket_size),
              "Gradients that ranks sum at a time."),
      harmless(integer("parallel.checksum_interval", 0, kAny,
                       DELTATRAIN_FIELD(parallel.checksum_interval),
                       "Steps between comparisons of the weights of all ranks, which also precede "
                       "every save; 0: those alone.")),
      boolean("parallel.nvls", DELTATRAIN_FIELD(parallel.nvls),
              "Let NCCL use NVLink multicast: needs a fabric that is set up for it."),
      harmless(integer("parallel.heartbeat_timeout_seconds", 1, 3600,
                       DELTATRAIN_FIELD(parallel.heartbeat_timeout_seconds),
                       "Silence of a rank after which it is lost and all others end.")),
      harmless(integer("parallel.collective_timeout_seconds", 1, 86400,
                       DELTATRAIN_FIELD(parallel.collective_timeout_seconds),
                       "How long ranks wait for one that lives but does not come.")),
      harmless(integer("checkpoint.save_interval", 0, kAny,
                       DELTATRAIN_FIELD(checkpoint.save_interval),
                       "Steps between checkpoints; 0: only at the end.")),
      harmless(integer("checkpoint.keep_last", 0, kAny, DELTATRAIN_FIELD(checkpoint.keep_last),
                       "Newest checkpoints kept; 0: all.")),
      harmless(integer("checkpoint.keep_every", 0, kAny, DELTATRAIN_FIELD(checkpoint.keep_every),
                       "Checkpoints at multiples of this step are kept for good; 0: none.")),
      harmless(choice("checkpoint.format", {"native", "megatron"},
                      DELTATRAIN_FIELD(checkpoint.format), "Files of a checkpoint.")),
      harmless(boolean("checkpoint.hf", DELTATRAIN_FIELD(checkpoint.hf),
                       "Also a Hugging Face folder beside each checkpoint.")),
      harmless(boolean("checkpoint.fallback", DELTATRAIN_FIELD(checkpoint.fallback),
                       "Resume from the newest whole checkpoint when the last is broken.")),
      optional_path("checkpoint.init_from", DELTATRAIN_FIELD(checkpoint.init_from),
                    "Weights to start from: a checkpoint or a Hugging Face folder."),
      optional_path(
          "checkpoint.load", DELTATRAIN_FIELD(checkpoint.load),
          "Another run's checkpoint, native or Megatron's, to go on from in a new --out."),
      optional_integer("checkpoint.ckpt_step", 0, DELTATRAIN_FIELD(checkpoint.ckpt_step),
                       "Iteration to take instead of the tracker's, of load, or without load of "
                       "--resume; so are the three below meant."),
      boolean("checkpoint.finetune", DELTATRAIN_FIELD(checkpoint.finetune),
              "The weights alone: iteration, data and optimizer start anew."),
      boolean("checkpoint.no_load_optim", DELTATRAIN_FIELD(checkpoint.no_load_optim),
              "Not the optimizer: moments and schedule start anew, iteration and data go on."),
      boolean("checkpoint.no_load_rng", DELTATRAIN_FIELD(checkpoint.no_load_rng),
              "As in Megatron; changes nothing here, where random numbers follow from the seed and "
              "the step."),
      harmless(choice("checkpoint.megatron_spec", {"no-te", "te"},
                      DELTATRAIN_FIELD(checkpoint.megatron_spec),
                      "Layers of a checkpoint of format megatron; te: Transformer Engine's.")),
      harmless(choice("checkpoint.megatron_args", {"none", "namespace"},
                      DELTATRAIN_FIELD(checkpoint.megatron_args),
                      "none: torch.load takes the file with weights_only; namespace: with what "
                      "Megatron needs to resume.")),
      harmless(integer("log.log_interval", 1, kAny, DELTATRAIN_FIELD(log.log_interval),
                       "Steps per line of log.txt.")),
  };
}

#undef DELTATRAIN_FIELD

}  // namespace

const std::vector<RecipeField>& recipe_fields() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all = model_fields();
    for (RecipeField& field : training_fields()) all.push_back(std::move(field));
    return all;
  }();
  return fields;
}

const RecipeField* find_field(std::string_view key) {
  for (const RecipeField& field : recipe_fields()) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

const std::vector<std::string>& recipe_sections() {
  static const std::vector<std::string> sections = {"model", "data",     "optimizer",  "schedule",
                                                    "train", "parallel", "checkpoint", "log"};
  return sections;
}

}  // namespace deltatrain
