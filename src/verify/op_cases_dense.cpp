// Cases of linear, embedding, rms_norm, gated_rms_norm, swiglu, linear_swiglu, cross_entropy and norm_linear.
#include <cmath>

#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/gated_rms_norm.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/norm_linear.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

using ops::GradMode;

std::string sizes(std::initializer_list<std::pair<const char*, int64_t>> list) {
  std::string text;
  for (const auto& [letter, size] : list)
    text += (text.empty() ? "" : " ") + std::string(letter) + "=" + std::to_string(size);
  return text;
}

const char* placement_text(Placement placement) {
  switch (placement) {
    case Placement::kContiguous:
      return "";
    case Placement::kStridedRows:
      return ", strided rows";
    case Placement::kOddRows:
      return ", odd row stride";
    case Placement::kStridedHeads:
      return ", strided heads";
  }
  return "";
}

// --- linear

void linear_case(const CaseRun& run, int64_t R, int64_t D, int64_t X, Placement placement,
                 GradMode mode, bool with_bias, bool f32_output) {
  const double deviation = 1 / std::sqrt(static_cast<double>(D));
  {
    OpTrial trial = run.trial("linear_forward");
    trial.keep_when_exact();
    const Argument& x = trial.activation("x_RD", {R, D}, normal(), placement);
    const Argument& weight = trial.activation("weight_XD", {X, D}, normal(deviation));
    const Argument* bias = with_bias ? &trial.statistic("bias_X", {X}) : nullptr;
    const DType y_dtype = f32_output ? trial.statistics_dtype() : trial.activation_dtype();
    const Role role = mode == GradMode::kAccumulate ? Role::kInOut : Role::kOut;
    std::vector<double> start(static_cast<size_t>(R * X));
    const RandomStream stream(1, "y");
    for (size_t i = 0; i < start.size(); ++i) start[i] = stream.normal(i);
    const Argument& y =
        trial.argument("y_RX", role, y_dtype, {R, X}, Quantity::kProduct, start, placement);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::linear_forward(context, {pick(x), pick(weight), pick(bias), pick(y), mode});
    });
  }
  OpTrial trial = run.trial("linear_backward");
  trial.keep_when_exact();
  const Argument& dy = trial.activation("dy_RX", {R, X}, normal(), placement);
  const Argument& x = trial.activation("x_RD", {R, D}, normal(), placement);
  const Argument& weight = trial.activation("weight_XD", {X, D}, normal(deviation));
  std::vector<double> start(static_cast<size_t>(R * D));
  const RandomStream stream(1, "dx");
  for (size_t i = 0; i < start.size(); ++i) start[i] = stream.normal(i);
  const Role role = mode == GradMode::kAccumulate ? Role::kInOut : Role::kOut;
  const Argument& dx = trial.argument("dx_RD", role, trial.activation_dtype(), {R, D},
                                      Quantity::kProduct, start, placement);
  const Argument& dweight =
      mode == GradMode::kAccumulate
          ? trial.accumulated("dweight_XD", {X, D})
          : trial.statistic_output("dweight_XD", {X, D}, Quantity::kWeightGradient);
  const Argument* dbias = nullptr;
  if (with_bias) {
    dbias = mode == GradMode::kAccumulate
                ? &trial.accumulated("dbias_X", {X})
                : &trial.statistic_output("dbias_X", {X}, Quantity::kWeightGradient);
  }
  trial.run([&](const Context& context, const Pick& pick) {
    ops::linear_backward(context, {pick(dy), pick(x), pick(weight), pick(dx), pick(dweight),
                                   pick(dbias), mode, mode});
  });
}

void add_linear(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t D, int64_t X, Placement placement,
                            GradMode mode, bool bias, bool f32_output) {
    std::string name = sizes({{"R", R}, {"D", D}, {"X", X}}) + placement_text(placement);
    if (mode == GradMode::kAccumulate) name += ", accumulate";
    if (bias) name += ", bias";
    if (f32_output) name += ", f32 output";
    cases.push_back({"linear", name, set, [=](const CaseRun& run) {
                       linear_case(run, R, D, X, placement, mode, bias, f32_output);
                     }});
  };
  using P = Placement;
  add(CaseSet::kSmall, 63, 64, 96, P::kContiguous, GradMode::kOverwrite, false, false);
  add(CaseSet::kSmall, 63, 64, 96, P::kStridedRows, GradMode::kAccumulate, true, false);
  add(CaseSet::kSmall, 17, 33, 9, P::kOddRows, GradMode::kOverwrite, true, true);
  add(CaseSet::kSmall, 1, 128, 64, P::kContiguous, GradMode::kAccumulate, false, true);
  // Enough tiles of 64 x 64, and with gemm_uniform_rows of 128 x 128, for three quarters of a large device, with sums long
  // enough for places of a ring to be used twice.
  add(CaseSet::kSmall, 64, 328, 6400, P::kContiguous, GradMode::kOverwrite, true, false);
  add(CaseSet::kSmall, 130, 328, 6400, P::kContiguous, GradMode::kOverwrite, false, false);
  add(CaseSet::kFull, 1000, 256, 320, P::kContiguous, GradMode::kOverwrite, true, false);
  add(CaseSet::kFull, 1000, 256, 320, P::kStridedRows, GradMode::kAccumulate, true, true);
  add(CaseSet::kFull, 1, 1, 1, P::kContiguous, GradMode::kOverwrite, true, false);
  add(CaseSet::kFull, 1, 4096, 1024, P::kContiguous, GradMode::kOverwrite, false, false);
  add(CaseSet::kFull, 16, 4096, 1024, P::kStridedRows, GradMode::kAccumulate, true, false);
  add(CaseSet::kFull, 9, 512, 9001, P::kContiguous, GradMode::kOverwrite, true, true);
  // Few rows, in all ways that a device may divide such products.
  add(CaseSet::kSmall, 65, 72, 200, P::kContiguous, GradMode::kOverwrite, true, false);
  add(CaseSet::kFull, 30, 512, 9001, P::kContiguous, GradMode::kAccumulate, true, false);
  add(CaseSet::kFull, 100, 512, 9001, P::kStridedRows, GradMode::kOverwrite, true, true);
  add(CaseSet::kFull, 256, 1024, 3000, P::kContiguous, GradMode::kAccumulate, true, false);
  add(CaseSet::kFull, 256, 328, 1000, P::kContiguous, GradMode::kOverwrite, false, false);
  add(CaseSet::kFull, 257, 1, 65, P::kOddRows, GradMode::kAccumulate, false, false);
}

// --- embedding

void embedding_case(const CaseRun& run, int64_t R, int64_t N, int64_t D, bool one_token,
                    bool f32_stream) {
  std::vector<int32_t> ids;
  const RandomStream stream(7, "ids");
  for (int64_t r = 0; r < R; ++r) {
    ids.push_back(one_token ? static_cast<int32_t>(N - 1)
                            : static_cast<int32_t>(stream.below(static_cast<uint64_t>(r),
                                                                static_cast<uint64_t>(N))));
  }
  {
    OpTrial trial = run.trial("embedding_forward");
    const Argument& ids_R = trial.integers("ids_R", ids);
    const Argument& weight = trial.activation("weight_ND", {N, D});
    const Argument& y = f32_stream ? trial.statistic_output("y_RD", {R, D}, Quantity::kExact)
                                   : trial.activation_output("y_RD", {R, D}, Quantity::kExact);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::embedding_forward(context, {pick(ids_R), pick(weight), pick(y)});
    });
  }
  OpTrial trial = run.trial("embedding_backward");
  const Argument& ids_R = trial.integers("ids_R", ids);
  const Argument& dy =
      f32_stream ? trial.statistic("dy_RD", {R, D}) : trial.activation("dy_RD", {R, D});
  const Argument& dweight = trial.accumulated("dweight_ND", {N, D});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::embedding_backward(context, {pick(ids_R), pick(dy), pick(dweight)});
  });
}

void add_embedding(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t N, int64_t D, bool one_token,
                            bool f32_stream = false) {
    std::string name = sizes({{"R", R}, {"N", N}, {"D", D}}) + (one_token ? ", one token" : "");
    if (f32_stream) name += ", f32 stream";
    cases.push_back({"embedding", name, set, [=](const CaseRun& run) {
                       embedding_case(run, R, N, D, one_token, f32_stream);
                     }});
  };
  add(CaseSet::kSmall, 1000, 50, 64, false);
  add(CaseSet::kSmall, 63, 1000, 33, false);
  add(CaseSet::kSmall, 1, 7, 5, false);
  add(CaseSet::kSmall, 1000, 5, 64, true);
  add(CaseSet::kSmall, 63, 50, 64, false, true);
  add(CaseSet::kSmall, 63, 50, 33, false, true);
  add(CaseSet::kFull, 5000, 30000, 128, false);
}

// --- rms_norm

struct NormOptions {
  Placement placement = Placement::kContiguous;
  bool residual = false;
  bool in_place = false;    // sum aliases residual, dsum aliases dx
  double deviation = 1;     // 0: rows of zeros; 1e-3: eps matters
  bool f32_stream = false;  // x without residual, residual, sum, dsum and dx in f32
};

void rms_norm_case(const CaseRun& run, int64_t R, int64_t D, const NormOptions& options) {
  // A tensor of the stream; in f32 nothing may be rounded to bf16 on the way into it.
  const auto stream = [&](OpTrial& trial, const char* name, Role role,
                          const Fill& fill) -> Argument& {
    if (!options.f32_stream && role == Role::kIn) return trial.activation(name, {R, D}, fill);
    if (!options.f32_stream) return trial.activation_output(name, {R, D}, Quantity::kElementwise);
    if (role == Role::kIn) return trial.statistic(name, {R, D}, fill);
    return trial.statistic_output(name, {R, D}, Quantity::kStatistic);
  };
  const auto changed = options.f32_stream ? Quantity::kStatistic : Quantity::kNorm;
  OpTrial trial = run.trial("rms_norm_forward");
  const Argument& x =
      options.f32_stream && !options.residual
          ? trial.statistic("x_RD", {R, D}, normal(options.deviation))
          : trial.activation("x_RD", {R, D}, normal(options.deviation), options.placement);
  const Argument& weight = trial.statistic("weight_D", {D});
  const Argument* residual = nullptr;
  const Argument* sum = nullptr;
  if (options.residual) {
    Argument& r = stream(trial, "residual_RD", Role::kIn, normal(2 * options.deviation));
    residual = &r;
    sum = options.in_place ? &trial.changed(r, options.f32_stream ? Quantity::kStatistic
                                                                  : Quantity::kElementwise)
                           : &stream(trial, "sum_RD", Role::kOut, Fill());
  }
  const Argument& y = trial.activation_output("y_RD", {R, D}, Quantity::kNorm);
  const Argument& inv_rms = trial.statistic_output("inv_rms_R", {R}, Quantity::kStatistic);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::rms_norm_forward(
        context, {pick(x), pick(residual), pick(weight), pick(sum), pick(y), pick(inv_rms), 1e-6});
  });

  OpTrial back = run.trial("rms_norm_backward");
  const Argument& dy = back.activation("dy_RD", {R, D});
  const std::vector<double> sums = trial.values(sum == nullptr ? x : *sum);
  const Argument& s = options.f32_stream
                          ? back.statistic("sum_RD", {R, D}, sums)
                          : back.activation("sum_RD", {R, D}, sums, options.placement);
  const Argument& w = back.statistic("weight_D", {D}, trial.values(weight));
  const Argument& inv = back.statistic("inv_rms_R", {R}, trial.values(inv_rms));
  const Argument* dsum = nullptr;
  const Argument* dx = nullptr;
  const Argument* dx_rounded = nullptr;
  if (options.in_place) {
    Argument& both = options.f32_stream
                         ? back.statistic("dsum_RD", {R, D})
                         : back.activation("dsum_RD", {R, D}, normal(), options.placement);
    dsum = dx = &back.changed(both, changed);
  } else {
    if (options.residual) dsum = &stream(back, "dsum_RD", Role::kIn, normal());
    dx = options.f32_stream ? &back.statistic_output("dx_RD", {R, D}, changed)
                            : &back.activation_output("dx_RD", {R, D}, changed, options.placement);
  }
  if (options.f32_stream && options.residual)
    dx_rounded = &back.activation_output("dx_rounded_RD", {R, D}, Quantity::kNorm);
  const Argument& dweight = back.accumulated("dweight_D", {D});
  back.run([&](const Context& context, const Pick& pick) {
    ops::rms_norm_backward(context, {pick(dy), pick(s), pick(w), pick(inv), pick(dsum), pick(dx),
                                     pick(dweight), pick(dx_rounded)});
  });
}

void add_rms_norm(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t D, const char* what,
                            const NormOptions& options) {
    cases.push_back({"rms_norm",
                     sizes({{"R", R}, {"D", D}}) + what + placement_text(options.placement), set,
                     [=](const CaseRun& run) { rms_norm_case(run, R, D, options); }});
  };
  using P = Placement;
  add(CaseSet::kSmall, 63, 64, "", {P::kContiguous, false, false, 1});
  add(CaseSet::kSmall, 63, 64, ", residual", {P::kStridedRows, true, false, 1});
  add(CaseSet::kSmall, 63, 33, ", residual in place", {P::kOddRows, true, true, 1});
  add(CaseSet::kSmall, 1, 1024, ", residual in place", {P::kContiguous, true, true, 1});
  add(CaseSet::kSmall, 5, 64, ", zeros", {P::kContiguous, false, false, 0});
  add(CaseSet::kSmall, 63, 64, ", tiny", {P::kContiguous, true, false, 1e-3});
  add(CaseSet::kSmall, 63, 64, ", f32 stream", {P::kContiguous, false, false, 1, true});
  add(CaseSet::kSmall, 63, 64, ", residual, f32 stream", {P::kStridedRows, true, false, 1, true});
  add(CaseSet::kSmall, 63, 33, ", residual in place, f32 stream",
      {P::kOddRows, true, true, 1, true});
  add(CaseSet::kSmall, 7, 1024, ", residual in place, f32 stream",
      {P::kContiguous, true, true, 1, true});
  add(CaseSet::kFull, 1000, 2048, ", residual in place, f32 stream",
      {P::kContiguous, true, true, 1, true});
  add(CaseSet::kFull, 1000, 1024, ", residual", {P::kContiguous, true, false, 1});
  add(CaseSet::kFull, 1000, 96, "", {P::kStridedRows, false, false, 30});
  add(CaseSet::kFull, 3, 8, "", {P::kContiguous, false, false, 1});
  add(CaseSet::kFull, 7, 4099, ", residual in place", {P::kContiguous, true, true, 1});
}

// --- gated_rms_norm

void gated_rms_norm_case(const CaseRun& run, int64_t R, int64_t G, int64_t V,
                         ops::GateActivation activation, Placement placement, double o_deviation,
                         double gate_deviation, bool in_place) {
  OpTrial trial = run.trial("gated_rms_norm_forward");
  const Argument& o = trial.activation("o_RGV", {R, G, V}, normal(o_deviation));
  const Argument& gate = trial.activation("gate_RGV", {R, G, V}, normal(gate_deviation), placement);
  const Argument& weight = trial.statistic("weight_V", {V});
  const Argument& y = trial.activation_output("y_RGV", {R, G, V}, Quantity::kNorm);
  const Argument& inv_rms = trial.statistic_output("inv_rms_RG", {R, G}, Quantity::kStatistic);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::gated_rms_norm_forward(
        context, {pick(o), pick(gate), pick(weight), pick(y), pick(inv_rms), 1e-6, activation});
  });

  OpTrial back = run.trial("gated_rms_norm_backward");
  Argument& dy = back.activation("dy_RGV", {R, G, V});
  const Argument& o2 = back.activation("o_RGV", {R, G, V}, trial.values(o));
  const Argument& gate2 = back.activation("gate_RGV", {R, G, V}, trial.values(gate), placement);
  const Argument& w = back.statistic("weight_V", {V}, trial.values(weight));
  const Argument& inv = back.statistic("inv_rms_RG", {R, G}, trial.values(inv_rms));
  const Argument& d_o = in_place ? back.changed(dy, Quantity::kNorm)
                                 : back.activation_output("do_RGV", {R, G, V}, Quantity::kNorm);
  const Argument& dgate =
      back.activation_output("dgate_RGV", {R, G, V}, Quantity::kNorm, placement);
  const Argument& dweight = back.accumulated("dweight_V", {V});
  back.run([&](const Context& context, const Pick& pick) {
    ops::gated_rms_norm_backward(context, {pick(dy), pick(o2), pick(gate2), pick(w), pick(inv),
                                           pick(d_o), pick(dgate), pick(dweight), activation});
  });
}

void add_gated_rms_norm(std::vector<OpCase>& cases) {
  for (const auto activation : {ops::GateActivation::kSilu, ops::GateActivation::kSigmoid}) {
    const std::string kind = activation == ops::GateActivation::kSilu ? ", silu" : ", sigmoid";
    const auto add = [&](CaseSet set, int64_t R, int64_t G, int64_t V, const std::string& what,
                         Placement placement, double o_deviation, double gate_deviation,
                         bool in_place) {
      cases.push_back(
          {"gated_rms_norm",
           sizes({{"R", R}, {"G", G}, {"V", V}}) + kind + what + placement_text(placement), set,
           [=](const CaseRun& run) {
             gated_rms_norm_case(run, R, G, V, activation, placement, o_deviation, gate_deviation,
                                 in_place);
           }});
    };
    using P = Placement;
    add(CaseSet::kSmall, 63, 2, 64, "", P::kStridedRows, 1, 1, false);
    add(CaseSet::kSmall, 63, 3, 33, ", in place", P::kOddRows, 1, 1, true);
    add(CaseSet::kSmall, 5, 2, 64, ", tiny", P::kContiguous, 1e-3, 1, false);
    add(CaseSet::kSmall, 5, 2, 64, ", zeros", P::kContiguous, 0, 1, false);
    add(CaseSet::kSmall, 63, 1, 128, ", saturated gates", P::kContiguous, 1, 40, false);
    add(CaseSet::kFull, 1000, 8, 64, "", P::kContiguous, 1, 1, true);
    add(CaseSet::kFull, 1000, 4, 128, "", P::kStridedRows, 1, 1, false);
    add(CaseSet::kFull, 1, 1, 256, "", P::kContiguous, 1, 1, false);
  }
}

// --- swiglu

void swiglu_case(const CaseRun& run, int64_t R, int64_t F, double deviation, bool in_place,
                 bool again) {
  {
    OpTrial trial = run.trial("swiglu_forward");
    const Argument& gate_up = trial.activation("gate_up_RX", {R, 2 * F}, normal(deviation));
    const Argument& y = trial.activation_output("y_RF", {R, F}, Quantity::kElementwise);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::swiglu_forward(context, {pick(gate_up), pick(y)});
    });
  }
  OpTrial trial = run.trial("swiglu_backward");
  const Argument& dy = trial.activation("dy_RF", {R, F});
  Argument& gate_up = trial.activation("gate_up_RX", {R, 2 * F}, normal(deviation));
  const Argument& d =
      in_place ? trial.changed(gate_up, Quantity::kElementwise)
               : trial.activation_output("dgate_up_RX", {R, 2 * F}, Quantity::kElementwise);
  const Argument* y =
      again ? &trial.activation_output("y_RF", {R, F}, Quantity::kElementwise) : nullptr;
  trial.run([&](const Context& context, const Pick& pick) {
    ops::swiglu_backward(context, {pick(dy), pick(gate_up), pick(d), pick(y)});
  });
}

void add_swiglu(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t F, const char* what, double deviation,
                            bool in_place, bool again) {
    cases.push_back({"swiglu", sizes({{"R", R}, {"F", F}}) + what, set, [=](const CaseRun& run) {
                       swiglu_case(run, R, F, deviation, in_place, again);
                     }});
  };
  add(CaseSet::kSmall, 63, 64, ", output again", 1, false, true);
  add(CaseSet::kSmall, 63, 33, ", in place", 2, true, true);
  add(CaseSet::kSmall, 1, 5, "", 1, false, false);
  add(CaseSet::kSmall, 63, 64, ", saturated", 60, true, false);
  add(CaseSet::kFull, 1000, 352, ", in place", 1, true, true);
}

// --- cross_entropy

void cross_entropy_case(const CaseRun& run, int64_t R, int64_t N, double deviation,
                        double grad_scale, int ignore_every, bool with_lse,
                        ops::CrossEntropy::Gradient gradient) {
  OpTrial trial = run.trial("cross_entropy");
  trial.keep_when_exact();
  Argument& logits = trial.activation("logits_RN", {R, N}, normal(deviation));
  std::vector<int32_t> labels;
  const RandomStream stream(7, "labels");
  for (int64_t r = 0; r < R; ++r) {
    const bool ignored = ignore_every > 0 && r % ignore_every == 0;
    labels.push_back(ignored ? ops::kIgnoredLabel
                             : static_cast<int32_t>(stream.below(static_cast<uint64_t>(r),
                                                                 static_cast<uint64_t>(N))));
  }
  const Argument& labels_R = trial.integers("labels_R", labels);
  const Argument& loss = trial.statistic_output("loss_R", {R}, Quantity::kStatistic);
  const Argument* lse =
      with_lse ? &trial.statistic_output("lse_R", {R}, Quantity::kStatistic) : nullptr;
  if (gradient == ops::CrossEntropy::Gradient::kWrite) trial.changed(logits, Quantity::kNorm);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::cross_entropy(context,
                       {pick(logits), pick(labels_R), pick(loss), pick(lse), grad_scale, gradient});
  });
}

void add_cross_entropy(std::vector<OpCase>& cases) {
  using G = ops::CrossEntropy::Gradient;
  const auto add = [&cases](CaseSet set, int64_t R, int64_t N, const char* what, double deviation,
                            double grad_scale, int ignore_every, bool with_lse, G gradient) {
    cases.push_back(
        {"cross_entropy", sizes({{"R", R}, {"N", N}}) + what, set, [=](const CaseRun& run) {
           cross_entropy_case(run, R, N, deviation, grad_scale, ignore_every, with_lse, gradient);
         }});
  };
  add(CaseSet::kSmall, 63, 1000, "", 1, 1.0 / 63, 0, true, G::kWrite);
  add(CaseSet::kSmall, 63, 333, ", some ignored", 3, 1.0 / 64, 3, false, G::kWrite);
  add(CaseSet::kSmall, 5, 257, ", all ignored", 1, 1, 1, true, G::kWrite);
  add(CaseSet::kSmall, 63, 512, ", loss only", 2, 1, 5, true, G::kNone);
  add(CaseSet::kSmall, 17, 100, ", large logits", 30, 1, 0, true, G::kWrite);
  add(CaseSet::kSmall, 1, 2, "", 1, 1, 0, true, G::kWrite);
  // A row for several blocks together, more of them than a device has pairs of blocks; a row whose stretches are just not more
  // memory than may be had unasked; and more rows than the blocks of a device and the stretches they keep.
  add(CaseSet::kSmall, 199, 32776, "", 2, 1.0 / 199, 7, true, G::kWrite);
  add(CaseSet::kSmall, 3, 8192, "", 2, 1.0 / 3, 0, true, G::kWrite);
  add(CaseSet::kSmall, 2000, 520, "", 2, 1.0 / 2000, 7, true, G::kWrite);
  add(CaseSet::kFull, 7, 50304, "", 2, 1.0 / 7, 0, true, G::kWrite);
  add(CaseSet::kFull, 3, 128256, ", loss only", 2, 1, 0, true, G::kNone);
  add(CaseSet::kFull, 3, 128256, "", 2, 1, 0, true, G::kWrite);
  add(CaseSet::kFull, 1000, 257, ", some ignored", 1, 1e-6, 7, true, G::kWrite);
}

// --- linear_swiglu

// `deviation`: of gate and up.
void linear_swiglu_forward_case(const CaseRun& run, int64_t R, int64_t D, int64_t F,
                                double deviation) {
  OpTrial trial = run.trial("linear_swiglu_forward");
  trial.keep_when_exact();
  const Argument& x = trial.activation("x_RD", {R, D});
  const Argument& weight = trial.activation("weight_XD", {2 * F, D},
                                            normal(deviation / std::sqrt(static_cast<double>(D))));
  const Argument& gate_up = trial.activation_output("gate_up_RX", {R, 2 * F}, Quantity::kProduct);
  const Argument& y = trial.activation_output("y_RF", {R, F}, Quantity::kComposed);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::linear_swiglu_forward(context, {pick(x), pick(weight), pick(gate_up), pick(y)});
  });
}

void linear_swiglu_backward_case(const CaseRun& run, int64_t R, int64_t D, int64_t F,
                                 double deviation, bool in_place) {
  OpTrial trial = run.trial("linear_swiglu_backward");
  trial.keep_when_exact();
  const Argument& dz = trial.activation("dz_RD", {R, D});
  const Argument& weight =
      trial.activation("weight_DF", {D, F}, normal(1 / std::sqrt(static_cast<double>(D))));
  Argument& gate_up = trial.activation("gate_up_RX", {R, 2 * F}, normal(deviation));
  const Argument& d = in_place
                          ? trial.changed(gate_up, Quantity::kComposed)
                          : trial.activation_output("dgate_up_RX", {R, 2 * F}, Quantity::kComposed);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::linear_swiglu_backward(context, {pick(dz), pick(weight), pick(gate_up), pick(d)});
  });
}

void add_linear_swiglu(std::vector<OpCase>& cases) {
  const auto add_forward = [&cases](CaseSet set, int64_t R, int64_t D, int64_t F,
                                    double deviation) {
    cases.push_back(
        {"linear_swiglu", "forward " + sizes({{"R", R}, {"D", D}, {"F", F}}), set,
         [=](const CaseRun& run) { linear_swiglu_forward_case(run, R, D, F, deviation); }});
  };
  const auto add_backward = [&cases](CaseSet set, int64_t R, int64_t D, int64_t F, double deviation,
                                     bool in_place) {
    cases.push_back(
        {"linear_swiglu",
         "backward " + sizes({{"R", R}, {"D", D}, {"F", F}}) + (in_place ? ", in place" : ""), set,
         [=](const CaseRun& run) {
           linear_swiglu_backward_case(run, R, D, F, deviation, in_place);
         }});
  };
  add_forward(CaseSet::kSmall, 3, 33, 20, 1);
  add_forward(CaseSet::kSmall, 130, 64, 256, 1);
  add_backward(CaseSet::kSmall, 3, 33, 20, 1, true);
  add_backward(CaseSet::kSmall, 130, 64, 256, 1, false);
  // Enough tiles for a large device to give them to blocks that stay, the last ones with an odd number of rows and none;
  // two steps a tile, so that places of a ring are used twice.
  add_forward(CaseSet::kSmall, 2101, 128, 1024, 1);
  add_backward(CaseSet::kSmall, 4181, 128, 1024, 1, true);
  add_forward(CaseSet::kFull, 4097, 320, 1024, 1);
  add_forward(CaseSet::kFull, 2200, 64, 1280, 30);
  add_backward(CaseSet::kFull, 4480, 192, 1024, 1, false);
  add_backward(CaseSet::kFull, 4240, 64, 1280, 30, true);
}

// --- norm_linear

struct StepProductCase {
  int64_t R, D, X;
  bool residual;
  ops::NormLinear::Activation activation = ops::NormLinear::Activation::kNone;
  bool index = false;
  Placement placement = Placement::kContiguous;
};

void norm_linear_case(const CaseRun& run, const StepProductCase& c) {
  OpTrial trial = run.trial("norm_linear");
  const bool is_swiglu = c.activation == ops::NormLinear::Activation::kSwiglu;
  const Argument& x = trial.activation("x_RD", {c.R, c.D}, normal(), c.placement);
  const Argument* residual =
      c.residual ? &trial.activation("residual_RD", {c.R, c.D}, normal(2)) : nullptr;
  const Argument& norm_weight = trial.statistic("norm_weight_D", {c.D}, uniform(0.5, 1.5));
  const Argument* sum =
      c.residual ? &trial.activation_output("sum_RD", {c.R, c.D}, Quantity::kElementwise) : nullptr;
  const double deviation = 1 / std::sqrt(static_cast<double>(c.D));
  std::vector<double> weights(static_cast<size_t>(c.X * c.D));
  const RandomStream stream(11, "weight_XD");
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = deviation * stream.normal(i);
  if (c.index) {
    // One output of each row far above the others, so that rounding on the way does not choose another.
    const std::vector<double> rows = trial.values(x);
    for (int64_t r = 0; r < c.R; ++r) {
      const int64_t top = (r * 37 + 11) % c.X;
      for (int64_t d = 0; d < c.D; ++d)
        weights[static_cast<size_t>(top * c.D + d)] = rows[static_cast<size_t>(r * c.D + d)] / 4;
    }
  }
  const Argument& weight = trial.activation("weight_XD", {c.X, c.D}, weights);
  const Argument& y =
      trial.activation_output("y_RX", {c.R, is_swiglu ? c.X / 2 : c.X}, Quantity::kComposed);
  const Argument* index =
      c.index ? &trial.argument("index_R", Role::kOut, DType::kI32, {c.R}, Quantity::kExact,
                                std::vector<double>(static_cast<size_t>(c.R)))
              : nullptr;
  trial.run([&](const Context& context, const Pick& pick) {
    ops::norm_linear(context, {.x_RD = pick(x),
                               .residual_RD = pick(residual),
                               .norm_weight_D = pick(norm_weight),
                               .sum_RD = pick(sum),
                               .weight_XD = pick(weight),
                               .y_RX = pick(y),
                               .index_R = pick(index),
                               .eps = 1e-6,
                               .activation = c.activation});
  });
}

void add_norm_linear(std::vector<OpCase>& cases) {
  using A = ops::NormLinear::Activation;
  using P = Placement;
  const auto add = [&cases](CaseSet set, const StepProductCase& c) {
    cases.push_back({"norm_linear",
                     sizes({{"R", c.R}, {"D", c.D}, {"X", c.X}}) +
                         (c.residual ? ", residual" : "") +
                         (c.activation == A::kSwiglu ? ", swiglu" : "") +
                         (c.index ? ", largest" : "") + placement_text(c.placement),
                     set, [c](const CaseRun& run) { norm_linear_case(run, c); }});
  };
  add(CaseSet::kSmall, {1, 64, 96, false});
  add(CaseSet::kSmall, {3, 128, 200, true, A::kNone, false, P::kStridedRows});
  add(CaseSet::kSmall, {9, 64, 96, true, A::kSwiglu});
  add(CaseSet::kSmall, {5, 33, 18, true, A::kSwiglu, false, P::kOddRows});
  add(CaseSet::kSmall, {2, 64, 300, true, A::kNone, true});
  add(CaseSet::kSmall, {40, 64, 96, true, A::kNone, true});
  add(CaseSet::kFull, {1, 1024, 8192, true, A::kSwiglu});
  add(CaseSet::kFull, {16, 1024, 8192, true, A::kSwiglu});
  add(CaseSet::kFull, {1, 1024, 50304, true, A::kNone, true});
  add(CaseSet::kFull, {8, 2048, 1544, true});
  add(CaseSet::kFull, {13, 2048, 9000, true, A::kNone, true});
}

}  // namespace

void add_dense_cases(std::vector<OpCase>& cases) {
  add_linear(cases);
  add_embedding(cases);
  add_rms_norm(cases);
  add_gated_rms_norm(cases);
  add_swiglu(cases);
  add_linear_swiglu(cases);
  add_cross_entropy(cases);
  add_norm_linear(cases);
}

}  // namespace deltatrain::verify
