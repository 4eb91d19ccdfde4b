// The published models, written out for tests.
#pragma once

#include "config/model_config.h"

namespace deltatrain::test {

inline ModelConfig gdn_300m() {
  ModelConfig c;
  c.family = ModelFamily::kGatedDeltaNet;
  c.vocab_size = 128256;
  c.hidden_size = 1024;
  c.intermediate_size = 4096;
  c.num_hidden_layers = 12;
  c.num_heads = 4;
  c.num_v_heads = 8;
  c.head_dim = 64;
  c.expand_v = 1;
  return c;
}

inline ModelConfig kda_300m() {
  ModelConfig c = gdn_300m();
  c.family = ModelFamily::kKda;
  c.num_heads = 8;
  c.head_dim = 32;
  c.expand_v = 2;
  return c;
}

inline ModelConfig gdn_1b() {
  ModelConfig c = gdn_300m();
  c.hidden_size = 2048;
  c.intermediate_size = 8192;
  c.num_hidden_layers = 16;
  c.num_heads = 8;
  c.num_v_heads = 16;
  return c;
}

inline ModelConfig kda_1b() {
  ModelConfig c = gdn_1b();
  c.family = ModelFamily::kKda;
  c.num_heads = 16;
  c.head_dim = 32;
  c.expand_v = 2;
  return c;
}

inline MlaConfig mla_300m() {
  MlaConfig a;
  a.layers = {0, 4, 8};
  a.num_heads = 16;
  a.q_lora_rank = 672;
  a.kv_lora_rank = 64;
  a.qk_nope_head_dim = 32;
  a.qk_rope_head_dim = 32;
  a.v_head_dim = 64;
  a.rope_theta = 500000;
  return a;
}

inline MlaConfig mla_1b() {
  MlaConfig a = mla_300m();
  a.layers = {0, 4, 8, 12};
  a.num_heads = 32;
  a.q_lora_rank = 1344;
  a.kv_lora_rank = 128;
  return a;
}

inline ModelConfig with_attention(ModelConfig config, const MlaConfig& attention) {
  config.attn = attention;
  return config;
}

}  // namespace deltatrain::test
