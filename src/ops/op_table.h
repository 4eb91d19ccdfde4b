// The functions of one backend. A slot a backend leaves empty becomes an UnsupportedError when it
// is called.
#pragma once

#include <string_view>

#include "ops/adamw.h"
#include "ops/causal_attention.h"
#include "ops/cross_entropy.h"
#include "ops/delta_gate.h"
#include "ops/delta_step.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gated_delta_rule.h"
#include "ops/gated_rms_norm.h"
#include "ops/l2_norm.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/mla_key.h"
#include "ops/norm_linear.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/short_conv.h"
#include "ops/short_conv_norm.h"
#include "ops/swiglu.h"
#include "ops/token_choices.h"
#include "ops/token_scores.h"

namespace deltatrain::ops {

// Told of every call through a table that has one: for profiles.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // What the next ops belong to: "forward", "loss head", "backward", "optimizer".
  virtual void part(std::string_view) {}
  virtual void begin(std::string_view op) = 0;
  virtual void end(std::string_view op) = 0;
};

struct OpTable {
  const char* backend = "";        // for error messages
  OpObserver* observer = nullptr;  // set in a copy of a backend's table
  LinearKernels linear;
  LinearSwigluKernels linear_swiglu;  // may stay empty
  EmbeddingKernels embedding;
  RmsNormKernels rms_norm;
  NormLinearKernels norm_linear;  // may stay empty
  GatedRmsNormKernels gated_rms_norm;
  ShortConvKernels short_conv;
  ShortConvNormKernels short_conv_norm;  // may stay empty
  L2NormKernels l2_norm;
  DeltaGateKernels delta_gate;
  DeltaStepKernels delta_step;
  GatedDeltaRuleKernels gated_delta_rule;
  RotaryKernels rotary;
  CausalAttentionKernels causal_attention;
  MlaKeyKernels mla_key;
  SwigluKernels swiglu;
  CrossEntropyKernels cross_entropy;
  TokenScoresKernels token_scores;
  TokenChoicesKernels token_choices;
  AdamWKernels adamw;
  ElementwiseKernels elementwise;
};

}  // namespace deltatrain::ops
