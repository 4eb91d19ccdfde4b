// A training run as plain structs. Reading, checking and printing: config/recipe_reader.h. Keys in
// YAML are the field names below, in the section of the same name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"

namespace deltatrain {

// In YAML without the k, in small letters, words joined by a hyphen: "megatron-exact".
enum class DecayStyle : uint8_t { kConstant, kLinear, kCosine };
enum class DecayGroups : uint8_t { kMegatron, kHf, kMegatronExact };
enum class Precision : uint8_t { kF32, kBf16 };
enum class OnNonFinite : uint8_t { kStop, kSkip };
enum class CheckpointFormat : uint8_t { kNative, kMegatron };
enum class MegatronLayers : uint8_t { kNoTe, kTe };           // "no-te", "te"
enum class MegatronArgsKind : uint8_t { kNone, kNamespace };  // of a written file
enum class DataOrder : uint8_t {                              // data/sample_source.h
  kSequential,
  kMegatron,
  kMegatronCyclic,
  kTorchDistributed,
  kHfTrainer,
};

struct DataConfig {
  std::string train;                 // prefix of .bin/.idx; empty: not given
  std::optional<std::string> valid;  // prefix; absent: no validation
  std::string tokenizer;             // folder or file, copied into exports; may be empty
  DataOrder order = DataOrder::kMegatron;
  std::optional<std::string> split;  // shares of `train` such as "99,1,0"; absent: all of it
  bool eod_mask_loss = false;        // no label behind model.eos_token_id
  bool packed_documents = false;     // state restarts where documents start

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct OptimizerConfig {
  double lr = 0;
  double min_lr = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // 0: no clipping
  DecayGroups decay_groups = DecayGroups::kMegatron;

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct ScheduleConfig {
  int64_t lr_warmup_iters = 0;
  int64_t lr_decay_iters = 0;  // from step 0 on; not given: train_iters
  DecayStyle lr_decay_style = DecayStyle::kCosine;

  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

struct TrainConfig {
  int64_t train_iters = 0;
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;
  int64_t seq_length = 0;
  uint64_t seed = 42;
  Precision precision = Precision::kF32;
  OnNonFinite on_nonfinite = OnNonFinite::kStop;
  int64_t eval_interval = 0;  // steps between validations; 0: only at the end if there is data
  int64_t eval_iters = 0;     // global batches per validation
  bool fp32_residual_connection = false;

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

struct ParallelConfig {
  int64_t loss_chunk_rows = 0;  // rows of logits at a time; 0: chosen by the engine
  // Of several ranks.
  bool use_distributed_optimizer = false;  // ZeRO-1
  bool overlap_grad_reduce = true;         // sums of gradients beside the backward pass
  bool overlap_param_gather = true;        // new weights beside the next forward pass
  int64_t ddp_bucket_size = 10'000'000;    // elements that are summed at a time
  int64_t checksum_interval = 100;         // steps between comparisons of the weights; 0: none
  bool nvls = false;                       // NVLink multicast
  int64_t heartbeat_timeout_seconds = 10;
  int64_t collective_timeout_seconds = 300;

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct CheckpointConfig {
  int64_t save_interval = 0;  // steps; 0: only at the end
  int64_t keep_last = 2;      // 0: all
  int64_t keep_every = 0;     // steps whose multiples are never pruned; 0: none
  CheckpointFormat format = CheckpointFormat::kNative;
  bool hf = false;        // also write hf/ beside each checkpoint
  bool fallback = false;  // resume from the newest whole checkpoint when the last is broken
  std::optional<std::string> init_from;  // checkpoint or Hugging Face folder
  // Another run's checkpoint to go on from, and how much of it is taken, as Megatron's options say.
  // The rest speaks of `load` where that is given, else of --resume.
  std::optional<std::string> load;
  std::optional<int64_t> ckpt_step;  // instead of the tracker's
  bool finetune = false;             // weights alone: iteration, data and optimizer start anew
  bool no_load_optim = false;        // moments and schedule start anew, iteration and data go on
  bool no_load_rng = false;          // there is no such state here: it follows from seed and step
  MegatronLayers megatron_spec = MegatronLayers::kNoTe;
  MegatronArgsKind megatron_args = MegatronArgsKind::kNone;

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct LogConfig {
  int64_t log_interval = 1;  // steps per Megatron line in log.txt

  friend bool operator==(const LogConfig&, const LogConfig&) = default;
};

struct Recipe {
  ModelConfig model;
  DataConfig data;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  LogConfig log;

  friend bool operator==(const Recipe&, const Recipe&) = default;
};

}  // namespace deltatrain
