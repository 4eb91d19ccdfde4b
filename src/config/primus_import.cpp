#include "config/primus_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "config/primus_pattern.h"
#include "config/primus_presets.h"
#include "config/primus_rules.h"
#include "config/recipe_reader.h"

namespace deltatrain {

namespace {

using primus::Experiment;
using primus::Value;

class Importer {
 public:
  Importer(const Experiment& experiment, const ImportOptions& options)
      : experiment_(experiment), options_(options) {}

  ImportResult run() {
    map_model();
    map_training();
    map_files();
    report_knobs();
    report_rest();
    return std::move(result_);
  }

 private:
  // Access
  // -----------------------------------------------------------------------------------------------

  // The setting, or Megatron's default of it, or null where neither is known.
  const Value* find(const std::string& key) {
    if (const auto found = experiment_.settings.find(key); found != experiment_.settings.end())
      return &found->second;
    if (const auto found = defaults_.find(key); found != defaults_.end()) return &found->second;
    const auto text = primus::megatron_default(key);
    if (!text) return nullptr;
    return &(defaults_[key] = Value{parse_yaml(*text, "", false), "Megatron's default",
                                    primus::Layer::kMegatron});
  }

  void report(ImportStatus status, const std::string& key, const Value* value,
              const std::string& note) {
    seen_.insert(key);
    result_.rows.push_back({status, key, value == nullptr ? "nothing" : yaml_text(value->node),
                            value == nullptr ? "" : value->origin, note, false});
  }

  void mapped(const std::string& key, const std::string& note) {
    report(ImportStatus::kMapped, key, find(key), note);
  }
  void leaked(const std::string& key, const std::string& note) {
    report(ImportStatus::kLeaked, key, find(key), note);
  }
  void refused(const std::string& key, const std::string& note) {
    report(ImportStatus::kRefused, key, find(key), note);
  }

  // Reads a key of one type into a field; absent or null gives `absent` if there is one. Reports.
  template <class T, class Convert, class Field>
  void take(const std::string& key, const std::string& target, const char* expected,
            Convert convert, Field& field, std::optional<T> absent = std::nullopt) {
    const Value* value = find(key);
    if (value == nullptr || primus::is_null(value->node)) {
      if (absent) {
        field = static_cast<Field>(*absent);
        if (value != nullptr) mapped(key, target);
      } else {
        refused(key, std::string("expected ") + expected);
      }
      return;
    }
    const auto converted = convert(value->node);
    if (!converted) {
      refused(key, std::string("expected ") + expected);
      return;
    }
    field = static_cast<Field>(*converted);
    mapped(key, target);
  }

  template <class Field>
  void take_integer(const std::string& key, const std::string& target, Field& field,
                    std::optional<int64_t> absent = std::nullopt) {
    take<int64_t>(key, target, "a whole number", primus::to_integer, field, absent);
  }

  void take_number(const std::string& key, const std::string& target, double& field) {
    take<double>(key, target, "a number", primus::to_number, field);
  }

  void take_boolean(const std::string& key, const std::string& target, bool& field) {
    take<bool>(key, target, "true or false", primus::to_boolean, field);
  }

  bool is_true(const std::string& key) {
    const Value* value = find(key);
    return value != nullptr && primus::to_boolean(value->node).value_or(false);
  }

  std::optional<std::string> text_of(const std::string& key) {
    const Value* value = find(key);
    if (value == nullptr || primus::is_null(value->node) || !value->node.is_scalar())
      return std::nullopt;
    return value->node.text;
  }

  // Model
  // ------------------------------------------------------------------------------------------------

  void map_model() {
    ModelConfig& m = recipe().model;
    map_spec();
    take_integer("hidden_size", "model.hidden_size", m.hidden_size);
    take_integer("ffn_hidden_size", "model.intermediate_size", m.intermediate_size);
    map_blocks();
    map_heads();
    take_boolean("use_short_conv", "model.use_short_conv", m.use_short_conv);
    take_number("init_method_std", "model.initializer_range", m.initializer_range);
    bool untied = false;
    take_boolean("untie_embeddings_and_output_weights",
                 "model.tie_word_embeddings, the other way round", untied);
    m.tie_word_embeddings = !untied;
    map_epsilon();
    map_vocabulary();
  }

  void map_spec() {
    const Value* value = find("spec");
    const std::string name = value == nullptr ? ""
                             : value->node.is_list() && !value->node.items.empty()
                                 ? value->node.items.back().text
                                 : value->node.text;
    if (const primus::Spec* found = primus::find_spec(name)) {
      const primus::Spec& spec = *found;
      recipe().model.family = spec.is_kda ? ModelFamily::kKda : ModelFamily::kGatedDeltaNet;
      const std::string target =
          std::string("model.model_type ") + (spec.is_kda ? "kda" : "gated_deltanet");
      if (spec.is_transformer_engine && is_true("multi_latent_attention")) {
        leaked("spec", target +
                           "; this spec norms latent attention's ranks twice; corrected: once "
                           "(model.attn.double_norms: true in the recipe does as the reference)");
      } else if (spec.is_transformer_engine && spec.is_kda) {
        mapped("spec", target + "; its gate norm is never applied and is left out");
      } else {
        mapped("spec", target);
      }
      return;
    }
    const bool is_mamba = name.find("mamba") != std::string::npos || name == "hybrid_stack_spec";
    refused("spec", is_mamba ? "Mamba mixers are not supported"
                             : "expected a gdn_hybrid_stack_spec or kda_hybrid_stack_spec");
  }

  // Blocks of a mixer or attention and a feed-forward layer, from the pattern or the ratio.
  void map_blocks() {
    const std::optional<std::string> pattern = text_of("hybrid_layer_pattern");
    const std::optional<std::string> alias = text_of("hybrid_override_pattern");
    const char* pattern_key = pattern ? "hybrid_layer_pattern" : "hybrid_override_pattern";
    int64_t sublayers = 0;
    if (pattern && alias) {
      refused("hybrid_override_pattern", "hybrid_layer_pattern is given too");
      return;
    }
    if (!pattern || find("num_layers") != nullptr) {
      take_integer("num_layers", "model.num_hidden_layers, two sublayers a block", sublayers);
    }
    std::string symbols = pattern ? *pattern : alias.value_or("");
    if (!symbols.empty()) {
      if (pattern) sublayers = static_cast<int64_t>(symbols.size());
      if (static_cast<int64_t>(symbols.size()) != sublayers) {
        refused(pattern_key,
                fmt::format("expected num_layers ({}) symbols, got {}", sublayers, symbols.size()));
        return;
      }
    } else {
      double ratio = 0;
      take_number("hybrid_attention_ratio", "model.attn.layers", ratio);
      if (sublayers < 2 || sublayers > 8192 || sublayers % 2 != 0 || ratio < 0 || ratio > 1) {
        refused("num_layers", "expected an even number from 2 to 8192, and a ratio from 0 to 1");
        return;
      }
      symbols = primus::allocate_sublayers(sublayers, ratio);
    }
    const auto attention = primus::find_attention_blocks(symbols);
    if (!attention) {
      refused(pattern_key,
              "expected a mixer (M) or attention (*) and a feed-forward layer (-) in turn");
      return;
    }
    recipe().model.num_hidden_layers = static_cast<int64_t>(symbols.size() / 2);
    if (pattern || alias) mapped(pattern_key, "model.attn.layers");
    map_attention(*attention);
  }

  void map_attention(const std::vector<int64_t>& layers) {
    if (layers.empty()) {
      for (const char* key :
           {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
            "rotary_base", "num_attention_heads", "multi_latent_attention"}) {
        if (experiment_.settings.count(key) != 0)
          report(ImportStatus::kInert, key, find(key), "no block attends");
      }
      return;
    }
    if (!is_true("multi_latent_attention")) {
      refused("multi_latent_attention",
              "expected true: of attention layers, only multi-head latent ones are supported");
      return;
    }
    mapped("multi_latent_attention", "model.attn");
    MlaConfig& a = recipe().model.attn.emplace();
    a.layers = layers;
    take_integer("num_attention_heads", "model.attn.num_heads", a.num_heads);
    if (const Value* rank = find("q_lora_rank"); rank != nullptr && primus::is_null(rank->node)) {
      mapped("q_lora_rank", "model.attn.q_lora_rank");
    } else {
      int64_t q_rank = 0;
      take_integer("q_lora_rank", "model.attn.q_lora_rank", q_rank);
      a.q_lora_rank = q_rank;
    }
    take_integer("kv_lora_rank", "model.attn.kv_lora_rank", a.kv_lora_rank);
    take_integer("qk_head_dim", "model.attn.qk_nope_head_dim", a.qk_nope_head_dim);
    take_integer("qk_pos_emb_head_dim", "model.attn.qk_rope_head_dim", a.qk_rope_head_dim);
    take_integer("v_head_dim", "model.attn.v_head_dim", a.v_head_dim);
    take_number("rotary_base", "model.attn.rope_theta", a.rope_theta);
  }

  void map_heads() {
    ModelConfig& m = recipe().model;
    int64_t value_width = 0;
    const struct {
      const char* key;
      const char* target;
      int64_t* field;
    } heads[] = {
        {"linear_num_key_heads", "model.num_heads", &m.num_heads},
        {"linear_num_value_heads", "model.num_v_heads", &m.num_v_heads},
        {"linear_key_head_dim", "model.head_dim", &m.head_dim},
        {"linear_value_head_dim", "model.expand_v, as a multiple of head_dim", &value_width}};
    for (const auto& head : heads) {
      take_integer(head.key, head.target, *head.field);
      if (find(head.key)->layer == primus::Layer::kMegatron) {
        result_.rows.back().status = ImportStatus::kLeaked;
        result_.rows.back().note +=
            "; no file sets it, so Megatron's own number is kept: give --set " +
            std::string(head.key) + "=N";
      }
    }
    take_integer("linear_conv_kernel_dim", "model.conv_size", m.conv_size);
    if (m.head_dim > 0)
      m.expand_v = static_cast<double>(value_width) / static_cast<double>(m.head_dim);
  }

  // Megatron reads layernorm_epsilon only; norm_epsilon, which the files set, does nothing.
  void map_epsilon() {
    const Value* effective = find("layernorm_epsilon");
    const Value* written = find("norm_epsilon");
    const auto eps = primus::to_number(effective->node);
    const double intended = written == nullptr ? 0 : primus::to_number(written->node).value_or(0);
    double& used = recipe().model.norm_eps;
    if (!eps || *eps <= 0) {
      refused("layernorm_epsilon", "expected a number > 0");
      return;
    }
    used = *eps;
    if (effective->is_declared()) {
      mapped("layernorm_epsilon", "model.norm_eps");
      if (written != nullptr && written->is_declared() && intended != *eps) {
        refused("norm_epsilon", "layernorm_epsilon says otherwise; give one of them with --set");
      }
    } else {
      const bool is_meant = written != nullptr && written->is_declared() && intended > 0;
      const double correct = is_meant ? intended : 1e-6;
      if (correct == *eps) {
        mapped("layernorm_epsilon", "model.norm_eps");
      } else if (options_.keep_epsilon) {
        leaked("layernorm_epsilon", "model.norm_eps, kept as asked");
      } else {
        used = correct;
        leaked("layernorm_epsilon", fmt::format("corrected: model.norm_eps is {}", correct));
      }
    }
    if (recipe().model.attn) recipe().model.attn->norm_eps = used;
  }

  void map_vocabulary() {
    ModelConfig& m = recipe().model;
    const std::optional<std::string> name = text_of("tokenizer_model");
    const primus::KnownTokenizer* known = name ? primus::find_tokenizer(*name) : nullptr;
    const Value* given = find("vocab_size");
    const bool is_given = given != nullptr && !primus::is_null(given->node);
    int64_t multiple = 128;
    take_integer("make_vocab_size_divisible_by", "model.vocab_size is a multiple of it", multiple);
    if (is_given) {
      take_integer("vocab_size", "model.vocab_size, rounded up", m.vocab_size);
    } else if (known != nullptr) {
      m.vocab_size = known->vocab_size;
    } else {
      refused("vocab_size",
              "the size of tokenizer_model's vocabulary is not known: give --set vocab_size=N");
    }
    if (multiple > 0 && m.vocab_size > 0) m.vocab_size = round_up(m.vocab_size, multiple);
    if (name) {
      mapped(
          "tokenizer_model",
          known != nullptr
              ? fmt::format("model.vocab_size {}; give its folder as data.tokenizer", m.vocab_size)
              : std::string("give its folder as data.tokenizer"));
    }
    if (known != nullptr) {
      m.bos_token_id = known->bos_token_id;
      m.eos_token_id = known->eos_token_id;
    }
    if (is_true("mock_data") && !is_given) {
      leaked(
          "mock_data",
          fmt::format(
              "the reference would embed 131200 made-up tokens; corrected: model.vocab_size is {}",
              m.vocab_size));
    }
  }

  // Training
  // ---------------------------------------------------------------------------------------------

  void map_training() {
    Recipe& r = recipe();
    take_number("lr", "optimizer.lr", r.optimizer.lr);
    take_number("min_lr", "optimizer.min_lr", r.optimizer.min_lr);
    take_number("adam_beta1", "optimizer.adam_beta1", r.optimizer.adam_beta1);
    take_number("adam_beta2", "optimizer.adam_beta2", r.optimizer.adam_beta2);
    take_number("adam_eps", "optimizer.adam_eps", r.optimizer.adam_eps);
    take_number(
        "weight_decay",
        "optimizer.weight_decay; decay_groups megatron-exact decays what the reference does",
        r.optimizer.weight_decay);
    r.optimizer.decay_groups = DecayGroups::kMegatronExact;
    take_number("clip_grad", "optimizer.clip_grad", r.optimizer.clip_grad);
    take_integer("train_iters", "train.train_iters", r.train.train_iters);
    take_integer("lr_warmup_iters", "schedule.lr_warmup_iters", r.schedule.lr_warmup_iters);
    take_integer("lr_decay_iters", "schedule.lr_decay_iters", r.schedule.lr_decay_iters,
                 r.train.train_iters);
    map_decay_style();
    take_integer("micro_batch_size", "train.micro_batch_size", r.train.micro_batch_size);
    take_integer("global_batch_size", "train.global_batch_size", r.train.global_batch_size);
    take_integer("seq_length", "train.seq_length", r.train.seq_length);
    take_integer("max_position_embeddings", "model.max_position_embeddings",
                 r.model.max_position_embeddings, r.train.seq_length);
    take_integer("seed", "train.seed", r.train.seed);
    bool is_bf16 = false;
    take_boolean("bf16", "train.precision", is_bf16);
    r.train.precision = is_bf16 ? Precision::kBf16 : Precision::kF32;
    take_boolean("fp32_residual_connection", "train.fp32_residual_connection",
                 r.train.fp32_residual_connection);
    if (find("use_distributed_optimizer") != nullptr) {
      take_boolean("use_distributed_optimizer", "parallel.use_distributed_optimizer",
                   r.parallel.use_distributed_optimizer);
    }
    take_integer("eval_iters", "train.eval_iters", r.train.eval_iters);
    take_integer("eval_interval", "train.eval_interval", r.train.eval_interval);
    take_integer("log_interval", "log.log_interval", r.log.log_interval);
  }

  void map_decay_style() {
    const std::string style = text_of("lr_decay_style").value_or("");
    const std::map<std::string, DecayStyle> styles = {{"constant", DecayStyle::kConstant},
                                                      {"linear", DecayStyle::kLinear},
                                                      {"cosine", DecayStyle::kCosine}};
    const auto found = styles.find(style);
    if (found == styles.end()) {
      refused("lr_decay_style", "expected constant, linear or cosine");
      return;
    }
    recipe().schedule.lr_decay_style = found->second;
    mapped("lr_decay_style", "schedule.lr_decay_style");
  }

  void map_files() {
    Recipe& r = recipe();
    map_prefix("train_data_path", "data_path", "data.train",
               [&](const std::string& path) { r.data.train = path; });
    if (r.train.eval_iters > 0) {
      map_prefix("valid_data_path", "", "data.valid",
                 [&](const std::string& path) { r.data.valid = path; });
    }
    map_split();
    map_order();
    map_loss_mask();
    if (text_of("save")) {
      take_integer("save_interval", "checkpoint.save_interval", r.checkpoint.save_interval, 0);
      report(ImportStatus::kInert, "save", find("save"), "the folder is train's --out");
    } else {
      if (find("save") != nullptr)
        mapped("save", "checkpoint.save_interval 0: only the last step is saved");
      if (find("save_interval") != nullptr) {
        report(ImportStatus::kInert, "save_interval", find("save_interval"), "save is null");
      }
    }
    map_load();
  }

  // Shares of one data set; null in the presets, and without effect where files are named per split.
  void map_split() {
    const auto split = text_of("split");
    const Value* whole = find("data_path");
    const bool has_whole = whole != nullptr && !primus::is_null(whole->node);
    if (!split || !has_whole || is_true("mock_data")) return;  // reported with the other rules
    recipe().data.split = *split;
    mapped("split", "data.split");
  }

  struct KnobValue {
    std::string text;
    std::string origin;
  };

  // A knob of the reference's: its environment variable goes before the file. Absent: by default.
  std::optional<KnobValue> knob(const std::string& key, const std::string& variable) {
    const auto exported = experiment_.surroundings.find("env." + variable);
    if (!variable.empty() && exported != experiment_.surroundings.end())
      return KnobValue{yaml_text(exported->second.node),
                       exported->second.origin + " (env." + variable + ")"};
    if (const char* set = variable.empty() ? nullptr : std::getenv(variable.c_str()))
      return KnobValue{set, "environment " + variable};
    const auto given = experiment_.settings.find(key);
    if (given == experiment_.settings.end() || primus::is_null(given->second.node))
      return std::nullopt;
    return KnobValue{yaml_text(given->second.node), given->second.origin};
  }

  void report(ImportStatus status, const std::string& key, const KnobValue& value,
              const std::string& note) {
    seen_.insert(key);
    result_.rows.push_back({status, key, value.text, value.origin, note, false});
  }

  void map_order() {
    DataConfig& data = recipe().data;
    const bool is_cyclic = text_of("dataloader_type").value_or("single") == "cyclic";
    const auto rows = knob("use_fla_data", "PRIMUS_FLA_DATA");
    const auto cache = knob("fla_cache_dir", "PRIMUS_FLA_CACHE_DIR");
    // As the reference reads it.
    const bool takes_rows = rows && rows->text != "" && rows->text != "\"\"" && rows->text != "0" &&
                            rows->text != "false" && rows->text != "False";
    if (takes_rows && (!cache || cache->text.empty() || cache->text == "\"\"")) {
      report(ImportStatus::kInert, "use_fla_data", *rows,
             "without fla_cache_dir the reference ignores it");
    } else if (takes_rows && is_true("mock_data")) {
      report(ImportStatus::kInert, "use_fla_data", *rows, "mock_data ignores it");
    } else if (takes_rows) {
      report(ImportStatus::kMapped, "use_fla_data", *rows, "data.order torch-distributed");
      report(ImportStatus::kMapped, "fla_cache_dir", *cache, "data.train");
      data.train = cache->text;
      data.order = DataOrder::kTorchDistributed;
      if (is_cyclic)
        leaked("dataloader_type",
               "the reference would shuffle FLA's order once more; corrected: it is kept");
      return;
    }
    const Value* type = find("dataloader_type");
    const std::string name = text_of("dataloader_type").value_or("single");
    if (name != "single" && name != "cyclic") {
      refused("dataloader_type", "expected single or cyclic");
      return;
    }
    data.order = is_cyclic ? DataOrder::kMegatronCyclic : DataOrder::kMegatron;
    if (type->layer != primus::Layer::kMegatron || is_cyclic)
      mapped("dataloader_type", is_cyclic ? "data.order megatron-cyclic" : "data.order megatron");
  }

  // Whether the reference would take one of its fused loss heads.
  bool has_fused_head() {
    const auto mode = knob("fused_ce_mode", "PRIMUS_FUSED_CE");
    return mode && (mode->text == "1" || mode->text == "2");
  }

  void map_loss_mask() {
    if (find("eod_mask_loss") == nullptr) return;
    bool& mask = recipe().data.eod_mask_loss;
    take_boolean("eod_mask_loss", "data.eod_mask_loss", mask);
    if (!mask) return;
    ImportRow& row = result_.rows.back();
    if (!recipe().model.eos_token_id) {
      row.status = ImportStatus::kRefused;
      row.note =
          "tokenizer_model's end of document is not known: --set eod_mask_loss=false, and give "
          "data.eod_mask_loss and model.eos_token_id in the recipe";
    } else if (has_fused_head()) {
      row.status = ImportStatus::kLeaked;
      row.note =
          "the reference's fused_ce_mode ignores the mask; corrected: data.eod_mask_loss is true";
    }
  }

  // Which checkpoint the run starts from, and how much of it is taken.
  void map_load() {
    CheckpointConfig& checkpoint = recipe().checkpoint;
    const auto load = text_of("load");
    const auto pretrained = text_of("pretrained_checkpoint");
    if (!load) {
      if (find("load") != nullptr) report(ImportStatus::kInert, "load", find("load"), "none");
      if (pretrained) {
        checkpoint.init_from = *pretrained;
        mapped("pretrained_checkpoint", "checkpoint.init_from");
      }
      return;  // what speaks of load is reported with the other rules
    }
    checkpoint.load = *load;
    mapped("load", "checkpoint.load");
    if (pretrained)
      report(ImportStatus::kInert, "pretrained_checkpoint", find("pretrained_checkpoint"),
             "of a load that holds no checkpoint, which train refuses");
    const std::pair<const char*, bool*> parts[] = {{"finetune", &checkpoint.finetune},
                                                   {"no_load_optim", &checkpoint.no_load_optim},
                                                   {"no_load_rng", &checkpoint.no_load_rng}};
    for (const auto& [key, field] : parts) {
      if (find(key) != nullptr) take_boolean(key, std::string("checkpoint.") + key, *field);
    }
    if (text_of("ckpt_step")) {
      int64_t step = 0;
      take_integer("ckpt_step", "checkpoint.ckpt_step", step);
      checkpoint.ckpt_step = step;
    }
  }

  // Prefixes, for `put` as one text: one, or several with or without a weight before each.
  template <class Put>
  void map_prefix(const std::string& key, const std::string& other, const std::string& target,
                  Put put) {
    for (const std::string& name : {key, other}) {
      const Value* value = name.empty() ? nullptr : find(name);
      if (value == nullptr) continue;
      std::vector<std::string> words;
      const std::vector<YamlNode> nodes =
          value->node.is_list() ? value->node.items : std::vector<YamlNode>{value->node};
      for (const YamlNode& node : nodes) {
        if (primus::is_null(node)) continue;
        std::string word;
        for (const char c : node.text + " ") {
          if (c != ' ' && c != '\t' && c != '\n') {
            word += c;
          } else if (!word.empty()) {
            words.push_back(std::exchange(word, ""));
          }
        }
      }
      if (words.empty() || is_true("mock_data")) {
        report(ImportStatus::kInert, name, value, words.empty() ? "none" : "mock_data ignores it");
      } else {
        put(fmt::format("{}", fmt::join(words, " ")));
        mapped(name, target);
      }
    }
  }

  // The rest
  // ---------------------------------------------------------------------------------------------

  // Environment goes before the file, and the file before the default.
  void report_knobs() {
    for (const primus::Knob& knob : primus::kernel_knobs()) {
      const auto given = this->knob(knob.key, knob.environment);
      if (!given && experiment_.settings.count(knob.key) == 0) continue;
      ImportRow row{ImportStatus::kInert,
                    knob.key,
                    knob.default_text,
                    "the reference's default",
                    "chooses a kernel of the reference",
                    false};
      if (given) {
        row.value = given->text;
        row.origin = given->origin;
      }
      if (knob.key == "fused_ce_mode") row.note += "; modes 1 and 2 ignore the loss mask";
      seen_.insert(knob.key);
      result_.rows.push_back(std::move(row));
    }
  }

  void report_rest() {
    for (const auto& [key, value] : experiment_.ignored_bases) {
      const bool is_leak = value.is_declared();
      result_.rows.push_back({is_leak ? ImportStatus::kLeaked : ImportStatus::kInert, key,
                              yaml_text(value.node), value.origin,
                              "inherits nothing in the reference: only extends does", !is_leak});
    }
    // Keys that no file sets but whose default would train another model.
    for (const std::string& key : primus::rule_keys()) {
      if (experiment_.settings.count(key) == 0 && primus::megatron_default(key))
        apply_rule(key, *find(key));
    }
    for (const auto& [key, value] : experiment_.settings) {
      if (seen_.count(key) == 0) apply_rule(key, value);
    }
    for (const auto& [key, value] : experiment_.surroundings) {
      const bool is_variable = key.starts_with("env.");
      result_.rows.push_back(
          {ImportStatus::kInert, key, yaml_text(value.node), value.origin,
           is_variable ? "environment of the reference" : "names the run and its folders", false});
    }
  }

  void apply_rule(const std::string& key, const Value& value) {
    const primus::Rule* rule = primus::find_rule(key);
    if (rule == nullptr) {
      if (value.is_declared()) {
        const std::string meant = find_meant(key);
        report(ImportStatus::kRefused, key, &value,
               "unknown key" + (meant.empty() ? "" : "; did you mean " + meant + "?"));
      } else {
        report(ImportStatus::kInert, key, &value,
               "of the framework's preset, and of no model here");
        result_.rows.back().is_framework = true;
      }
      return;
    }
    if (rule->kind == primus::RuleKind::kInert) {
      report(ImportStatus::kInert, key, &value, rule->note);
      result_.rows.back().is_framework = !value.is_declared();
      return;
    }
    if (primus::is_allowed(*rule, value.node)) {
      if (value.layer == primus::Layer::kMegatron) return;  // nobody set it, and it is right
      report(ImportStatus::kMapped, key, &value, rule->note);
    } else if (rule->kind == primus::RuleKind::kOrLeaked && !value.is_declared()) {
      report(ImportStatus::kLeaked, key, &value, "corrected: " + rule->note);
    } else {
      report(ImportStatus::kRefused, key, &value, rule->note);
    }
  }

  std::string find_meant(const std::string& key) const {
    std::vector<std::string> names = primus::rule_keys();
    for (const ImportRow& row : result_.rows) {
      if (row.status != ImportStatus::kRefused) names.push_back(row.key);
    }
    for (const primus::Knob& knob : primus::kernel_knobs()) names.push_back(knob.key);
    return nearest_name(key, names);
  }

  Recipe& recipe() { return result_.recipe; }

  const Experiment& experiment_;
  const ImportOptions& options_;
  std::map<std::string, Value> defaults_;
  std::set<std::string> seen_;
  ImportResult result_;
};

}  // namespace

const char* import_status_name(ImportStatus status) {
  switch (status) {
    case ImportStatus::kMapped:
      return "mapped";
    case ImportStatus::kInert:
      return "inert";
    case ImportStatus::kRefused:
      return "refused";
    case ImportStatus::kLeaked:
      return "leaked";
  }
  return "?";
}

int64_t ImportResult::count(ImportStatus status) const {
  return std::count_if(rows.begin(), rows.end(),
                       [&](const ImportRow& row) { return row.status == status; });
}

ImportResult import_experiment(const std::filesystem::path& file, const ImportOptions& options) {
  const Experiment experiment = primus::load_experiment(file, options.presets, options.overrides);
  ImportResult result = Importer(experiment, options).run();
  if (result.count(ImportStatus::kRefused) == 0) {
    result.recipe =
        parse_recipe(recipe_to_yaml(result.recipe), file.string() + ", as recipe", {}).recipe;
  }
  return result;
}

}  // namespace deltatrain
