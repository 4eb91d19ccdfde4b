#include "config/primus_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "config/primus_presets.h"  // to_boolean, to_number

namespace deltatrain::primus {

namespace {

Rule inert(const char* key, const char* note) { return {key, RuleKind::kInert, {}, note}; }

Rule only(const char* key, std::vector<std::string> allowed, const char* note) {
  return {key, RuleKind::kOnly, std::move(allowed), note};
}

Rule or_leaked(const char* key, std::vector<std::string> allowed, const char* note) {
  return {key, RuleKind::kOrLeaked, std::move(allowed), note};
}

constexpr const char* kHow = "how the reference computes, not what";
constexpr const char* kShown = "what the reference shows and where";
constexpr const char* kOther = "of models or modes that these experiments do not use";
constexpr const char* kFiles = "how the reference writes and finds its files";
constexpr const char* kUnread = "no code of the reference reads it";

const std::vector<Rule>& all_rules() {
  static const std::vector<Rule> rules = {
      // What the model must be.
      or_leaked("hidden_dropout", {"0"}, "no dropout in these models"),
      or_leaked("attention_dropout", {"0"}, "no dropout in these models"),
      or_leaked("add_bias_linear", {"false"}, "linear layers have no bias, but KDA's output gate"),
      or_leaked("normalization", {"RMSNorm"}, "these models have RMSNorm"),
      or_leaked("position_embedding_type", {"none", "rope"},
                "delta-rule blocks have no position embedding"),
      only("is_hybrid_model", {"true"}, "the builder of these models"),
      only("model_type", {"mamba", "null"}, "the builder of these models"),
      only("swiglu", {"true"}, "the feed-forward layer is gated"),
      only("num_experts", {"null"}, "no mixture of experts"),
      only("mtp_num_layers", {"null", "0"}, "no multi-token prediction"),
      only("apply_residual_connection_post_layernorm", {"false"}, "blocks are pre-norm"),
      only("apply_layernorm_1p", {"false"}, "norm weights start at 1"),
      only("add_qkv_bias", {"false"}, "no bias"),
      only("qk_l2_norm", {"false"}, "attention has no such norm"),
      only("quick_geglu", {"false"}, "SwiGLU"),
      only("openai_gelu", {"false"}, "SwiGLU"),
      only("squared_relu", {"false"}, "SwiGLU"),
      only("use_rope_scaling", {"false"}, "plain rotary positions"),
      only("rotary_scaling_factor", {"1"}, "plain rotary positions"),
      only("rotary_percent", {"1"}, "plain rotary positions"),
      only("rotary_interleaved", {"false"}, "rotary halves"),
      only("rotary_seq_len_interpolation_factor", {"null"}, "plain rotary positions"),
      only("rope_type", {"null", "rope", "yarn"},
           "at scaling factor 1 all of them are plain rotary positions"),
      only("final_logit_softcapping", {"null"}, "no soft cap"),
      only("attn_logit_softcapping", {"null"}, "no soft cap"),
      only("init_method_xavier_uniform", {"false"}, "normal initial weights"),
      only("heterogeneous_layers_config_path", {"null"}, "blocks are alike"),
      only("heterogeneous_layers_config_encoded_json", {"null"}, "blocks are alike"),
      // What training must be.
      only("optimizer", {"adam"}, "AdamW"),
      only("fp16", {"false"}, "bf16 or f32"),
      only("fp8", {"null", "false"}, "bf16 or f32"),
      only("fp4", {"null", "false"}, "bf16 or f32"),
      only("tensor_model_parallel_size", {"1"}, "data parallel only"),
      only("pipeline_model_parallel_size", {"1"}, "data parallel only"),
      only("context_parallel_size", {"1"}, "data parallel only"),
      only("expert_model_parallel_size", {"1"}, "data parallel only"),
      only("rampup_batch_size", {"null"}, "one batch size"),
      only("train_samples", {"null"}, "train_iters counts"),
      only("lr_decay_samples", {"null"}, "lr_decay_iters counts"),
      only("lr_warmup_samples", {"0", "null"}, "lr_warmup_iters counts"),
      only("lr_warmup_fraction", {"null"}, "lr_warmup_iters counts"),
      only("lr_warmup_init", {"0"}, "warm-up starts at 0"),
      only("decoupled_lr", {"null"}, "one learning rate"),
      only("decoupled_min_lr", {"null"}, "one learning rate"),
      only("head_lr_mult", {"1"}, "one learning rate"),
      only("start_weight_decay", {"null"}, "constant weight decay"),
      only("end_weight_decay", {"null"}, "constant weight decay"),
      only("weight_decay_incr_style", {"constant"}, "constant weight decay"),
      only("reset_position_ids", {"false"}, "sequences are one piece"),
      only("reset_attention_mask", {"false"}, "sequences are one piece"),
      only("data_args_path", {"null"}, "train_data_path"),
      only("per_split_data_args_path", {"null"}, "train_data_path"),
      only("use_precision_aware_optimizer", {"false"}, "optimizer state is f32"),
      only("grad_reduce_in_bf16", {"false"}, "gradients are f32"),
      only("use_checkpoint_opt_param_scheduler", {"false"}, "the recipe's schedule holds"),
      only("use_checkpoint_args", {"false"}, "the recipe says the model and the training"),
      // Where it runs and what it shows.
      inert("norm_epsilon", "Megatron's name is layernorm_epsilon; taken as what its author meant"),
      inert("hybrid_attention_ratio", "the pattern says where attention is"),
      inert("hybrid_override_pattern", "none"),
      inert("hybrid_layer_pattern", "none"),
      inert("vocab_size", "tokenizer_model says it"),
      inert("tokenizer_model", "tokens come from prepared files"),
      inert("valid_data_path", "eval_iters is 0"),
      inert("use_fla_data", "off"),
      inert("fla_cache_dir", "of use_fla_data"),
      inert("original_max_position_embeddings",
            "of scaled rotary positions, at factor 1 without effect"),
      inert("add_position_embedding", "without effect at this position_embedding_type"),
      inert("use_rotary_position_embeddings", "without effect at this position_embedding_type"),
      inert("mscale*", "1 at scaling factor 1"),
      inert("num_query_groups", "latent attention has none"),
      inert("group_query_attention", "latent attention has none"),
      inert("kv_channels", "latent attention has none"),
      inert("qk_layernorm", "the norms of latent attention's ranks are part of the spec"),
      inert("hybrid_mlp_ratio", "the pattern has a feed-forward layer after each mixer"),
      inert("model_parallel_size", kUnread),
      inert("auto_continue_train", kUnread),
      inert("mamba_*", "of Mamba mixers"),
      inert("disable_mamba*", "of Mamba mixers"),
      inert("moe_*", kOther),
      inert("rl_*", kOther),
      inert("grpo_*", kOther),
      inert("langrl_*", kOther),
      inert("perform_rl_step", kOther),
      inert("retro_*", kOther),
      inert("retriever_*", kOther),
      inert("odc_*", kOther),
      inert("lfm_*", kOther),
      inert("conv_L_cache", kOther),
      inert("conv_bias", kOther),
      inert("dino_*", kOther),
      inert("muon_*", kOther),
      inert("vision_*", kOther),
      inert("inference_*", kOther),
      inert("encoder_*", kOther),
      inert("decoder_*", kOther),
      inert("bert_*", kOther),
      inert("indexer_*", kOther),
      inert("lr_wsd_*", "of another lr_decay_style"),
      inert("mock_data", "made-up tokens; data.train names real ones"),
      inert("test_data_path", "no test split"),
      inert("split", "files are named per split"),
      inert("data_cache_path", kFiles),
      inert("num_workers", kHow),
      inert("num_dataset_builder_threads", kHow),
      inert("create_attention_mask_in_dataloader", kHow),
      inert("mmap_bin_files", kHow),
      inert("calculate_per_token_loss", "the mean is over the tokens of the global batch"),
      inert("cross_entropy_*", kHow),
      inert("check_for_*", "see train.on_nonfinite"),
      inert("accumulate_allreduce_grads_in_fp32", "gradients are f32"),
      inert("main_grads_dtype", "gradients are f32"),
      inert("main_params_dtype", "masters are f32"),
      inert("exp_avg*", "optimizer state is f32"),
      inert("gradient_accumulation_fusion", kHow),
      inert("async_tensor_model_parallel_allreduce", kHow),
      inert("sequence_parallel", "off at one tensor-parallel rank"),
      inert("use_torch_fsdp2", kHow),
      inert("use_megatron_fsdp", kHow),
      inert("use_custom_fsdp", kHow),
      inert("data_parallel_sharding_strategy", kHow),
      inert("data_parallel_random_init", kHow),
      inert("ddp_*", kHow),
      inert("overlap_*", kHow),
      inert("align_*", kHow),
      inert("tp_comm_*", kHow),
      inert("cp_comm_type", kHow),
      inert("recompute_*", kHow),
      inert("distribute_saved_activations", kHow),
      inert("cpu_offload*", kHow),
      inert("optimizer_cpu_offload", kHow),
      inert("barrier_with_L1_time", kHow),
      inert("no_persist_layer_norm", kHow),
      inert("bias_*", kHow),
      inert("masked_softmax_fusion", kHow),
      inert("apply_rope_fusion", kHow),
      inert("apply_query_key_layer_scaling", kHow),
      inert("attention_softmax_in_fp32", kHow),
      inert("attention_backend", kHow),
      inert("transformer_impl", kHow),
      inert("use_flash_attn", kHow),
      inert("use_cpu_initialization", kHow),
      inert("perform_initialization", kHow),
      inert("empty_unused_memory_level", kHow),
      inert("deterministic_mode", "a run is always repeatable to the bit"),
      inert("manual_gc*", kHow),
      inert("fp8_*", "off"),
      inert("fp4_*", "off"),
      inert("enable_primus_turbo", kHow),
      inert("*turbo*", kHow),
      inert("enable_zero_bubble", "without pipeline stages"),
      inert("zero_bubble_*", "without pipeline stages"),
      inert("patch_*", kHow),
      inert("torch_compile*", kHow),
      inert("enable_torch_compile", kHow),
      inert("exit_*", "see checkpoint.* and the program's signals"),
      inert("rerun_mode", kHow),
      inert("error_injection_*", kOther),
      inert("iterations_to_skip", kOther),
      inert("distributed_*", kHow),
      inert("override_opt_param_scheduler", "the recipe's schedule holds"),
      inert("nemo_aligned_lr_warmup", "off in these experiments"),
      inert("disable_last_saving", "the last step is always saved"),
      inert("finetune", "there is no load"),
      inert("no_load_optim", "there is no load"),
      inert("no_load_rng", "there is no load"),
      inert("pretrained_checkpoint", "none"),
      inert("eod_mask_loss", "off"),
      inert("dataloader_type", "the order of the data set is kept"),
      inert("ckpt_step", "there is no load"),
      inert("no_save_*", "checkpoints are whole"),
      inert("load_main_params_from_ckpt", kFiles),
      inert("ckpt_*", kFiles),
      inert("dist_ckpt_*", kFiles),
      inert("async_save", "saving never waits"),
      inert("save_retain_interval", kFiles),
      inert("non_persistent_*", kFiles),
      inert("auto_detect_ckpt_format", kFiles),
      inert("tokenizer_type", "tokens come from prepared files"),
      inert("vocab_file", "tokens come from prepared files"),
      inert("merge_file", "tokens come from prepared files"),
      inert("vocab_extra_ids", "tokens come from prepared files"),
      inert("tiktoken_*", "tokens come from prepared files"),
      inert("log_*", kShown),
      inert("logging_level", kShown),
      inert("timing_log_*", kShown),
      inert("tensorboard_*", kShown),
      inert("disable_tensorboard", kShown),
      inert("disable_wandb", kShown),
      inert("disable_mlflow", kShown),
      inert("wandb_*", kShown),
      inert("mlflow_*", kShown),
      inert("enable_one_logger", kShown),
      inert("one_logger_*", kShown),
      inert("*sink_level", kShown),
      inert("profile*", kShown),
      inert("use_pytorch_profiler", kShown),
      inert("torch_profiler_*", kShown),
      inert("disable_profiler_*", kShown),
      inert("disable_compile_dependencies", kHow),
      inert("use_rocm_mem_info*", kShown),
      inert("record_memory_history", kShown),
      inert("memory_snapshot_path", kShown),
      inert("pp_warmup", kHow),
      inert("trainable", "says that this module is the trainer"),
  };
  return rules;
}

// "a*" matches what starts with a, "*a" what ends so, "*a*" what contains a.
bool matches(std::string_view pattern, std::string_view key) {
  const bool open_end = pattern.ends_with('*'), open_start = pattern.starts_with('*');
  if (open_end) pattern.remove_suffix(1);
  if (open_start) pattern.remove_prefix(1);
  if (open_start && open_end) return key.find(pattern) != std::string_view::npos;
  if (open_start) return key.ends_with(pattern);
  return open_end ? key.starts_with(pattern) : key == pattern;
}

}  // namespace

const Rule* find_rule(std::string_view key) {
  const Rule* found = nullptr;
  for (const Rule& rule : all_rules()) {
    if (rule.key == key) return &rule;
    if (found == nullptr && matches(rule.key, key)) found = &rule;
  }
  return found;
}

bool is_allowed(const Rule& rule, const YamlNode& value) {
  return std::any_of(rule.allowed.begin(), rule.allowed.end(), [&](const std::string& text) {
    if (text == "null") return is_null(value);
    if (text == "true" || text == "false") return to_boolean(value) == (text == "true");
    if (const auto number = to_number(value)) return fmt::format("{}", *number) == text;
    return value.is_scalar() && value.text == text;
  });
}

std::vector<std::string> rule_keys() {
  std::vector<std::string> keys;
  for (const Rule& rule : all_rules()) {
    if (rule.key.find('*') == std::string::npos) keys.push_back(rule.key);
  }
  return keys;
}

std::optional<std::string> megatron_default(std::string_view key) {
  static const std::map<std::string_view, std::string> defaults = {
      {"hidden_dropout", "0.1"},
      {"attention_dropout", "0.1"},
      {"add_bias_linear", "true"},
      {"normalization", "LayerNorm"},
      {"position_embedding_type", "learned_absolute"},
      {"layernorm_epsilon", "1e-5"},
      {"untie_embeddings_and_output_weights", "false"},
      {"init_method_std", "0.02"},
      {"is_hybrid_model", "false"},
      {"swiglu", "false"},
      {"multi_latent_attention", "false"},
      {"hybrid_attention_ratio", "0"},
      {"rotary_base", "10000"},
      {"linear_key_head_dim", "128"},
      {"linear_value_head_dim", "128"},
      {"linear_num_key_heads", "16"},
      {"linear_num_value_heads", "32"},
      {"linear_conv_kernel_dim", "4"},
      {"use_short_conv", "true"},
      {"make_vocab_size_divisible_by", "128"},
      {"bf16", "false"},
      {"fp32_residual_connection", "false"},
      {"adam_beta1", "0.9"},
      {"adam_beta2", "0.999"},
      {"adam_eps", "1e-8"},
      {"weight_decay", "0.01"},
      {"clip_grad", "1.0"},
      {"min_lr", "0"},
      {"lr_decay_style", "linear"},
      {"lr_warmup_iters", "0"},
      {"seed", "1234"},
      {"eval_iters", "100"},
      {"eval_interval", "1000"},
      {"log_interval", "100"},
      {"dataloader_type", "single"},
  };
  const auto found = defaults.find(key);
  return found == defaults.end() ? std::nullopt : std::optional(found->second);
}

const Spec* find_spec(std::string_view name) {
  static const std::vector<Spec> specs = {
      {"gdn_hybrid_stack_spec", false, true},
      {"gdn_hybrid_stack_spec_no_te", false, false},
      {"kda_hybrid_stack_spec", true, true},
      {"kda_hybrid_stack_spec_no_te", true, false},
  };
  for (const Spec& spec : specs) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const KnownTokenizer* find_tokenizer(std::string_view name) {
  static const std::vector<KnownTokenizer> tokenizers = {
      {"meta-llama/Llama-3.2-1B", 128256, 128000, 128001},
      {"meta-llama/Llama-3.2-3B", 128256, 128000, 128001},
      {"meta-llama/Llama-3.1-8B", 128256, 128000, 128001},
      {"fla-hub/gla-1.3B-100B", 32000, 1, 2},
  };
  for (const KnownTokenizer& tokenizer : tokenizers) {
    if (tokenizer.name == name) return &tokenizer;
  }
  return nullptr;
}

const std::vector<Knob>& kernel_knobs() {
  static const std::vector<Knob> knobs = {
      {"use_fla_fused_swiglu", "PRIMUS_FLA_SWIGLU", "true"},
      {"use_fla_fused_rmsnorm", "PRIMUS_FLA_NORM", "false"},
      {"use_fla_fused_gated_norm", "PRIMUS_FLA_NORM", "false"},
      {"use_fla_short_conv", "PRIMUS_FLA_CONV", "false"},
      {"fused_ce_mode", "PRIMUS_FUSED_CE", "1"},
      {"fused_ce_chunks", "PRIMUS_FUSED_CE_CHUNKS", "32"},
      {"fla_mla_attn", "PRIMUS_FLA_MLA_ATTN", "\"\""},
      {"empty_cache_interval", "PRIMUS_EMPTY_CACHE_INTERVAL", "1"},
      {"use_fla_triton_kda", "", "false"},
      {"use_fla_triton_kda_hybrid", "", "false"},
      {"use_fla_kda_in_kernel_gate", "", "true"},
      {"use_fla_fused_norm_gated", "", "false"},
  };
  return knobs;
}

}  // namespace deltatrain::primus
