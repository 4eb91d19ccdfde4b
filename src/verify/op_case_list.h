// The cases by area. Each function appends to one list.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "verify/op_trial.h"

namespace deltatrain::verify {

struct CaseRun {
  const Context& tested;
  const Context& reference;
  const std::string& name;
  std::vector<OpCaseResult>& results;
  Surroundings surroundings = Surroundings::kGuarded;

  OpTrial trial(const std::string& op) const {
    return OpTrial(tested, reference, op, name, results, surroundings);
  }
};

struct OpCase {
  std::string op;  // without _forward and _backward
  std::string name;
  CaseSet set;
  std::function<void(const CaseRun&)> run;
};

// linear embedding rms_norm gated_rms_norm swiglu linear_swiglu cross_entropy norm_linear
void add_dense_cases(std::vector<OpCase>& cases);
void add_score_cases(std::vector<OpCase>& cases);  // token_scores token_choices
// short_conv short_conv_norm l2_norm delta_gate delta_step
void add_mixer_cases(std::vector<OpCase>& cases);
void add_delta_rule_cases(std::vector<OpCase>& cases);  // gated_delta_rule
void add_attention_cases(std::vector<OpCase>& cases);   // rotary mla_key causal_attention
void add_update_cases(std::vector<OpCase>& cases);      // adamw elementwise

}  // namespace deltatrain::verify
