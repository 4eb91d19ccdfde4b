// Model FLOPs from the shapes. The formulas and what they leave out: docs/maths/flops.md.

#include "config/model_config.h"

namespace deltatrain {

namespace {

constexpr double kChunk = 64;  // tokens per chunk of the delta rule

// One linear layer: forward, gradient of its input, gradient of its weight.
double dense(int64_t rows, int64_t columns) {
  return 6.0 * static_cast<double>(rows) * static_cast<double>(columns);
}

double delta_mixer(const ModelConfig& c) {
  const int64_t D = c.hidden_size, G = c.num_v_heads;
  double flops = dense(2 * c.key_dim() + c.value_dim(), D) + dense(G, D) + dense(D, c.value_dim());
  if (c.family == ModelFamily::kGatedDeltaNet) {
    flops += dense(G, D);
    if (c.use_gate) flops += dense(c.value_dim(), D);
  } else {
    flops += dense(c.head_v_dim(), D) + dense(G * c.head_dim, c.head_v_dim());
    flops += dense(c.head_v_dim(), D) + dense(c.value_dim(), c.head_v_dim());
  }
  if (c.use_short_conv) {
    flops += 6.0 * static_cast<double>(c.conv_size) *
             static_cast<double>(2 * c.key_dim() + c.value_dim());
  }
  const auto K = static_cast<double>(c.head_dim);
  const auto V = static_cast<double>(c.head_v_dim());
  const double forward = 4 * kChunk * (K + V) + 6 * K * V;
  const double backward = 10 * kChunk * (K + V) + 14 * K * V + 4 * kChunk * kChunk;
  return flops + static_cast<double>(G) * (forward + backward);
}

double mla_mixer(const ModelConfig& c, int64_t seq_length) {
  const MlaConfig& a = *c.attn;
  const int64_t D = c.hidden_size, query_width = a.num_heads * a.qk_head_dim();
  double flops = a.q_lora_rank ? dense(*a.q_lora_rank, D) + dense(query_width, *a.q_lora_rank)
                               : dense(query_width, D);
  flops += dense(a.kv_lora_rank + a.qk_rope_head_dim, D);
  flops += dense(a.num_heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank);
  flops += dense(D, a.num_heads * a.v_head_dim);
  const double visible = static_cast<double>(seq_length) / 2;  // keys that a query sees, on average
  return flops + 6 * visible * static_cast<double>(a.num_heads * (a.qk_head_dim() + a.v_head_dim));
}

}  // namespace

double count_flops_per_token(const ModelConfig& config, int64_t seq_length) {
  const int64_t D = config.hidden_size;
  double flops = dense(config.vocab_size, D);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    flops += config.is_mla_layer(layer) ? mla_mixer(config, seq_length) : delta_mixer(config);
    flops += 3 * dense(config.intermediate_size, D);
  }
  return flops;
}

}  // namespace deltatrain
