// Cases of short_conv, short_conv_norm, l2_norm and delta_gate.
#include <cmath>

#include "ops/delta_gate.h"
#include "ops/delta_step.h"
#include "ops/l2_norm.h"
#include "ops/short_conv.h"
#include "ops/short_conv_norm.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

std::string packed_text(const std::vector<int32_t>& offsets) {
  if (offsets.size() == 2) return "T=" + std::to_string(offsets[1]);
  std::string text = "packed";
  for (size_t s = 0; s + 1 < offsets.size(); ++s)
    text += (s == 0 ? " " : "+") + std::to_string(offsets[s + 1] - offsets[s]);
  return text;
}

// --- short_conv

struct ConvOptions {
  Placement placement = Placement::kContiguous;
  bool history = false;   // initial and final
  bool in_place = false;  // final history aliases the initial one
};

void short_conv_case(const CaseRun& run, const std::vector<int32_t>& offsets, int64_t X, int64_t W,
                     const ConvOptions& options) {
  const int64_t R = offsets.back();
  {
    OpTrial trial = run.trial("short_conv_forward");
    const Argument& x = trial.activation("x_RX", {R, X}, normal(), options.placement);
    const Argument& weight = trial.statistic("weight_XW", {X, W});
    const SequenceArgument& sequences = trial.sequences(offsets);
    const Argument* initial = nullptr;
    const Argument* last = nullptr;
    if (options.history) {
      Argument& history = trial.statistic("initial_history_SWX", {sequences.num(), W - 1, X});
      initial = &history;
      last = options.in_place
                 ? &trial.changed(history, Quantity::kExact)
                 : &trial.statistic_output("final_history_SWX", {sequences.num(), W - 1, X},
                                           Quantity::kExact);
    }
    const Argument& y = trial.activation_output("y_RX", {R, X}, Quantity::kNorm, options.placement);
    const auto call = [&](const Context& context, const Pick& pick) {
      ops::short_conv_forward(
          context, {pick(x), pick(weight), pick(sequences), pick(initial), pick(last), pick(y)});
    };
    trial.run(call);
    if (offsets.size() == 2 && R > 16 && !options.history)
      trial.expect_prefix_unchanged(call, R, {1, 16, R - 1});
  }
  OpTrial trial = run.trial("short_conv_backward");
  const Argument& dy = trial.activation("dy_RX", {R, X}, normal(), options.placement);
  const Argument& x = trial.activation("x_RX", {R, X}, normal(), options.placement);
  const Argument& weight = trial.statistic("weight_XW", {X, W});
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument& dx = trial.activation_output("dx_RX", {R, X}, Quantity::kNorm, options.placement);
  const Argument& dweight = trial.accumulated("dweight_XW", {X, W});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::short_conv_backward(
        context, {pick(dy), pick(x), pick(weight), pick(sequences), pick(dx), pick(dweight)});
  });
}

void add_short_conv(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, const std::vector<int32_t>& offsets, int64_t X, int64_t W,
                            const ConvOptions& options) {
    std::string name = packed_text(offsets) + " X=" + std::to_string(X) + " W=" + std::to_string(W);
    if (options.history) name += options.in_place ? ", history in place" : ", history";
    if (options.placement == Placement::kStridedRows) name += ", strided rows";
    if (options.placement == Placement::kOddRows) name += ", odd row stride";
    cases.push_back({"short_conv", name, set,
                     [=](const CaseRun& run) { short_conv_case(run, offsets, X, W, options); }});
  };
  using P = Placement;
  const std::vector<int32_t> packed = {0, 1, 4, 21, 22, 86};
  add(CaseSet::kSmall, packed, 64, 4, {P::kStridedRows, true, false});
  add(CaseSet::kSmall, packed, 33, 4, {P::kOddRows, true, true});
  add(CaseSet::kSmall, {0, 129}, 64, 4, {});
  for (const int32_t T : {1, 2, 3, 63})
    add(CaseSet::kSmall, {0, T}, 48, 4, {P::kContiguous, true, true});
  for (const int64_t W : {1, 2, 8})
    add(CaseSet::kSmall, packed, 16, W, {P::kContiguous, W > 1, false});
  // Narrow, so that tools which watch every access see long ones too.
  for (const int32_t T : {64, 65, 127, 128, 257, 4099}) add(CaseSet::kSmall, {0, T}, 16, 4, {});
  for (const int32_t T : {15, 16, 17, 64, 65, 127, 513, 1000})
    add(CaseSet::kFull, {0, T}, 96, 4, {P::kStridedRows});
  for (const int64_t W : {3, 5, 6, 7})
    add(CaseSet::kFull, packed, 40, W, {P::kContiguous, true, true});
}

// --- short_conv_norm
// ------------------------------------------------------------------------------------------------

struct ConvNormOptions {
  Placement placement = Placement::kContiguous;
  bool history = false;
  bool zeros = false;  // whole stretches of x are zero, so that heads have no norm
};

void short_conv_norm_case(const CaseRun& run, const std::vector<int32_t>& offsets, int64_t H,
                          int64_t K, int64_t W, const ConvNormOptions& options) {
  const int64_t R = offsets.back();
  const int64_t X = 2 * H * K;
  const auto fill = [&options, X](const RandomStream& stream, int64_t i) {
    const bool zero = options.zeros && i / X % 12 >= 5;
    return zero ? 0.0 : stream.normal(static_cast<uint64_t>(i));
  };
  OpTrial trial = run.trial("short_conv_norm_forward");
  const Argument& x = trial.activation("x_RX", {R, X}, fill, options.placement);
  const Argument& weight = trial.statistic("weight_XW", {X, W});
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument* history = nullptr;
  if (options.history) {
    history = &trial.changed(trial.statistic("history_SWX", {sequences.num(), W - 1, X}, normal()),
                             Quantity::kExact);
  }
  const Argument& q = trial.activation_output("q_RHK", {R, H, K}, Quantity::kNorm);
  const Argument& k = trial.activation_output("k_RHK", {R, H, K}, Quantity::kNorm);
  // An inverse norm follows from outputs of the convolution, which backends may round.
  const Argument& q_norm = trial.statistic_output("q_inv_norm_RH", {R, H}, Quantity::kNorm);
  const Argument& k_norm = trial.statistic_output("k_inv_norm_RH", {R, H}, Quantity::kNorm);
  const auto call = [&](const Context& context, const Pick& pick) {
    ops::short_conv_norm_forward(
        context, {pick(x), pick(weight), pick(sequences), pick(history), pick(history), pick(q),
                  pick(k), pick(q_norm), pick(k_norm), 1e-6});
  };
  trial.run(call);
  if (offsets.size() == 2 && R > 16 && !options.history)
    trial.expect_prefix_unchanged(call, R, {1, 16, R - 1});

  OpTrial back = run.trial("short_conv_norm_backward");
  const Argument& dq = back.activation("dq_RHK", {R, H, K});
  const Argument& dk = back.activation("dk_RHK", {R, H, K});
  const Argument& q2 = back.activation_output("q_RHK", {R, H, K}, Quantity::kNorm);
  const Argument& k2 = back.activation_output("k_RHK", {R, H, K}, Quantity::kNorm);
  const Argument& q_norm2 = back.statistic_output("q_inv_norm_RH", {R, H}, Quantity::kNorm);
  const Argument& k_norm2 = back.statistic_output("k_inv_norm_RH", {R, H}, Quantity::kNorm);
  const Argument& x2 = back.activation("x_RX", {R, X}, fill, options.placement);
  const Argument& weight2 = back.statistic("weight_XW", {X, W});
  const SequenceArgument& sequences2 = back.sequences(offsets);
  const Argument& dx = back.activation_output("dx_RX", {R, X}, Quantity::kNorm, options.placement);
  const Argument& dweight = back.accumulated("dweight_XW", {X, W});
  back.run([&](const Context& context, const Pick& pick) {
    ops::short_conv_norm_forward(
        context, {pick(x2), pick(weight2), pick(sequences2), Tensor(), Tensor(), pick(q2), pick(k2),
                  pick(q_norm2), pick(k_norm2), 1e-6});
    ops::short_conv_norm_backward(
        context, {pick(dq), pick(dk), pick(q2), pick(k2), pick(q_norm2), pick(k_norm2), pick(x2),
                  pick(weight2), pick(sequences2), pick(dx), pick(dweight)});
  });
}

void add_short_conv_norm(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, const std::vector<int32_t>& offsets, int64_t H, int64_t K,
                            int64_t W, const ConvNormOptions& options) {
    std::string name = packed_text(offsets) + " H=" + std::to_string(H) +
                       " K=" + std::to_string(K) + " W=" + std::to_string(W);
    if (options.history) name += ", history in place";
    if (options.zeros) name += ", zeros";
    if (options.placement == Placement::kStridedRows) name += ", strided rows";
    if (options.placement == Placement::kOddRows) name += ", odd row stride";
    cases.push_back({"short_conv_norm", name, set, [=](const CaseRun& run) {
                       short_conv_norm_case(run, offsets, H, K, W, options);
                     }});
  };
  using P = Placement;
  const std::vector<int32_t> packed = {0, 1, 4, 21, 22, 86};
  add(CaseSet::kSmall, packed, 2, 64, 4, {P::kStridedRows});
  add(CaseSet::kSmall, packed, 3, 32, 4, {P::kStridedRows, true, false});
  add(CaseSet::kSmall, {0, 129}, 1, 16, 4, {});
  add(CaseSet::kSmall, {0, 40}, 2, 32, 4, {P::kContiguous, false, true});
  add(CaseSet::kSmall, {0, 63}, 1, 33, 4, {P::kOddRows});
  for (const int32_t T : {1, 2, 3}) add(CaseSet::kSmall, {0, T}, 1, 64, 4, {});
  for (const int32_t T : {64, 65, 127, 128, 257, 4099}) add(CaseSet::kSmall, {0, T}, 1, 8, 4, {});
  for (const int64_t W : {1, 3}) add(CaseSet::kFull, packed, 2, 32, W, {});
  add(CaseSet::kFull, packed, 1, 128, 4, {P::kOddRows});
  add(CaseSet::kFull, packed, 5, 128, 4, {P::kStridedRows});
  add(CaseSet::kFull, {0, 1000}, 4, 64, 4, {P::kStridedRows});
  add(CaseSet::kFull, {0, 513}, 9, 32, 4, {});
}

// --- l2_norm

void l2_norm_case(const CaseRun& run, int64_t R, int64_t H, int64_t K, Placement placement,
                  double deviation, bool in_place) {
  OpTrial trial = run.trial("l2_norm_forward");
  // Every fifth row is zero, as where an embedding is.
  const auto fill = [deviation, row = H * K](const RandomStream& stream, int64_t i) {
    return (i / row) % 5 == 4 ? 0.0 : deviation * stream.normal(static_cast<uint64_t>(i));
  };
  const Argument& x = trial.activation("x_RHK", {R, H, K}, fill, placement);
  const Argument& y = trial.activation_output("y_RHK", {R, H, K}, Quantity::kNorm);
  const Argument& inv_norm = trial.statistic_output("inv_norm_RH", {R, H}, Quantity::kStatistic);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::l2_norm_forward(context, {pick(x), pick(y), pick(inv_norm), 1e-6});
  });

  OpTrial back = run.trial("l2_norm_backward");
  Argument& dy = back.activation("dy_RHK", {R, H, K});
  const Argument& y2 = back.activation("y_RHK", {R, H, K}, trial.values(y));
  const Argument& inv = back.statistic("inv_norm_RH", {R, H}, trial.values(inv_norm));
  const Argument& dx =
      in_place ? back.changed(dy, Quantity::kNorm)
               : back.activation_output("dx_RHK", {R, H, K}, Quantity::kNorm, placement);
  back.run([&](const Context& context, const Pick& pick) {
    ops::l2_norm_backward(context, {pick(dy), pick(y2), pick(inv), pick(dx)});
  });
}

void add_l2_norm(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t H, int64_t K, const char* what,
                            Placement placement, double deviation, bool in_place) {
    cases.push_back(
        {"l2_norm",
         "R=" + std::to_string(R) + " H=" + std::to_string(H) + " K=" + std::to_string(K) + what,
         set,
         [=](const CaseRun& run) { l2_norm_case(run, R, H, K, placement, deviation, in_place); }});
  };
  using P = Placement;
  add(CaseSet::kSmall, 63, 2, 64, ", strided rows", P::kStridedRows, 1, false);
  add(CaseSet::kSmall, 63, 3, 33, ", odd row stride", P::kOddRows, 1, false);
  add(CaseSet::kSmall, 63, 4, 32, ", in place", P::kContiguous, 1, true);
  add(CaseSet::kSmall, 1, 1, 128, "", P::kContiguous, 1, false);
  add(CaseSet::kSmall, 63, 2, 16, ", tiny", P::kContiguous, 1e-4, false);
  add(CaseSet::kFull, 1000, 4, 64, ", in place", P::kContiguous, 1, true);
  add(CaseSet::kFull, 1000, 8, 128, ", strided rows", P::kStridedRows, 30, false);
  add(CaseSet::kFull, 7, 1, 256, "", P::kContiguous, 1, false);
}

// --- delta_gate

struct GateOptions {
  ops::DecayForm form = ops::DecayForm::kSoftplus;
  Placement placement = Placement::kContiguous;
  double a_deviation = 1;
  double b_deviation = 1;
  double A_log_low = 0;
  double A_log_high = 2.77;  // log 16
  double beta_scale = 1;
};

void delta_gate_case(const CaseRun& run, int64_t R, int64_t G, int64_t K,
                     const GateOptions& options) {
  const double bound = options.form == ops::DecayForm::kBounded ? -5 : 0;
  const Fill A_log_fill = uniform(options.A_log_low, options.A_log_high);
  {
    OpTrial trial = run.trial("delta_gate_forward");
    const Argument& a =
        trial.activation("a_RGK", {R, G, K}, normal(options.a_deviation), options.placement);
    const Argument& b =
        trial.activation("b_RG", {R, G}, normal(options.b_deviation), options.placement);
    const Argument& A_log = trial.statistic("A_log_G", {G}, A_log_fill);
    const Argument& dt_bias = trial.statistic("dt_bias_GK", {G, K}, uniform(-7, -2));
    const Argument& g = trial.statistic_output("g_RGK", {R, G, K}, Quantity::kStatistic);
    const Argument& beta = trial.statistic_output("beta_RG", {R, G}, Quantity::kStatistic);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::delta_gate_forward(context, {pick(a), pick(b), pick(A_log), pick(dt_bias), pick(g),
                                        pick(beta), options.form, bound, options.beta_scale});
    });
  }
  OpTrial trial = run.trial("delta_gate_backward");
  const Argument& dg = trial.statistic("dg_RGK", {R, G, K});
  const Argument& dbeta = trial.statistic("dbeta_RG", {R, G});
  const Argument& a =
      trial.activation("a_RGK", {R, G, K}, normal(options.a_deviation), options.placement);
  const Argument& b =
      trial.activation("b_RG", {R, G}, normal(options.b_deviation), options.placement);
  const Argument& A_log = trial.statistic("A_log_G", {G}, A_log_fill);
  const Argument& dt_bias = trial.statistic("dt_bias_GK", {G, K}, uniform(-7, -2));
  const Argument& da =
      trial.activation_output("da_RGK", {R, G, K}, Quantity::kNorm, options.placement);
  const Argument& db = trial.activation_output("db_RG", {R, G}, Quantity::kNorm, options.placement);
  const Argument& dA_log = trial.accumulated("dA_log_G", {G});
  const Argument& ddt_bias = trial.accumulated("ddt_bias_GK", {G, K});
  trial.run([&](const Context& context, const Pick& pick) {
    ops::delta_gate_backward(
        context, {pick(dg), pick(dbeta), pick(a), pick(b), pick(A_log), pick(dt_bias), pick(da),
                  pick(db), pick(dA_log), pick(ddt_bias), options.form, bound, options.beta_scale});
  });
}

void add_delta_gate(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t G, int64_t K, const std::string& what,
                            const GateOptions& options) {
    cases.push_back(
        {"delta_gate",
         "R=" + std::to_string(R) + " G=" + std::to_string(G) + " K=" + std::to_string(K) + what,
         set, [=](const CaseRun& run) { delta_gate_case(run, R, G, K, options); }});
  };
  using P = Placement;
  for (const auto form : {ops::DecayForm::kSoftplus, ops::DecayForm::kBounded}) {
    const bool softplus = form == ops::DecayForm::kSoftplus;
    const std::string kind = softplus ? ", softplus" : ", bounded";
    add(CaseSet::kSmall, 63, 8, 1, kind, {form, P::kStridedRows, 1, 1, 0, 2.77, 1});
    add(CaseSet::kSmall, 63, 2, 32, kind + ", beta up to 2", {form, P::kOddRows, 1, 1, 0, 2.77, 2});
    add(CaseSet::kSmall, 63, 2, 33, kind + ", strong",
        {form, P::kContiguous, softplus ? 8.0 : 1.0, 8, 2.77, 2.78, 1});
    add(CaseSet::kSmall, 63, 3, 1, kind + ", saturated",
        {form, P::kContiguous, 60, 60, -2, 2.77, 1});
    add(CaseSet::kFull, 1000, 8, 64, kind, {form, P::kContiguous, 1, 1, 0, 2.77, 1});
    add(CaseSet::kFull, 1, 1, 128, kind, {form, P::kContiguous, 1, 1, 0, 2.77, 1});
  }
}

struct StepCase {
  int64_t S, H, G, K, V, W;
  bool per_channel;
  bool has_gate;
  ops::DecayForm form = ops::DecayForm::kSoftplus;
  Placement placement = Placement::kContiguous;
  bool is_low_rank = false;  // a and z as pairs of rank V
};

void delta_step_case(const CaseRun& run, const StepCase& c) {
  OpTrial trial = run.trial("delta_step");
  const int64_t qk_width = 2 * c.H * c.K, v_width = c.G * c.V;
  const int64_t gate_width = c.per_channel ? c.K : 1;
  const Argument& qk = trial.activation("qk_SX", {c.S, qk_width}, normal(), c.placement);
  const Argument& v = trial.activation("v_SX", {c.S, v_width}, normal(), c.placement);
  const auto if_low_rank = [&](const char* name, int64_t rows, double deviation) {
    return c.is_low_rank ? &trial.activation(name, {rows, c.V}, normal(deviation),
                                             rows == c.S ? c.placement : Placement::kContiguous)
                         : nullptr;
  };
  const double deviation = 1 / std::sqrt(static_cast<double>(c.V));
  const Argument* a_low = if_low_rank("a_low_SP", c.S, 1);
  const Argument* a_weight = if_low_rank("a_weight_XP", c.G * c.K, deviation);
  const Argument* z_low = if_low_rank("z_low_SP", c.S, 1);
  const Argument* z_weight = if_low_rank("z_weight_XP", v_width, deviation);
  const Argument* z_bias = c.is_low_rank ? &trial.statistic("z_bias_X", {v_width}) : nullptr;
  const Argument* a =
      c.is_low_rank ? nullptr
                    : &trial.activation("a_SGK", {c.S, c.G, gate_width}, normal(), c.placement);
  const Argument& b = trial.activation("b_SG", {c.S, c.G}, normal(), c.placement);
  const Argument* z = c.has_gate && !c.is_low_rank
                          ? &trial.activation("z_SX", {c.S, v_width}, normal(), c.placement)
                          : nullptr;
  const Argument& qk_conv = trial.statistic("qk_conv_XW", {qk_width, c.W}, normal(0.5));
  const Argument& v_conv = trial.statistic("v_conv_XW", {v_width, c.W}, normal(0.5));
  const Argument& A_log = trial.statistic("A_log_G", {c.G}, uniform(0, 2.77));
  const Argument& dt_bias = trial.statistic("dt_bias_GK", {c.G, gate_width}, uniform(-7, -2));
  const Argument& weight = trial.statistic("norm_weight_V", {c.V}, uniform(0.5, 1.5));
  std::vector<int32_t> offsets;
  for (int64_t s = 0; s <= c.S; ++s) offsets.push_back(static_cast<int32_t>(s));
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument& qk_history =
      trial.changed(trial.statistic("qk_history_SWX", {c.S, c.W - 1, qk_width}), Quantity::kExact);
  const Argument& v_history =
      trial.changed(trial.statistic("v_history_SWX", {c.S, c.W - 1, v_width}), Quantity::kExact);
  const Argument& state =
      trial.changed(trial.statistic("state_SGKV", {c.S, c.G, c.K, c.V}), Quantity::kDeltaOutput);
  const Argument& y = trial.activation_output("y_SX", {c.S, v_width}, Quantity::kDeltaOutput);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::delta_step(context, {.qk_SX = pick(qk),
                              .v_SX = pick(v),
                              .a_SGK = pick(a),
                              .a_low_SP = pick(a_low),
                              .a_weight_XP = pick(a_weight),
                              .b_SG = pick(b),
                              .z_SX = pick(z),
                              .z_low_SP = pick(z_low),
                              .z_weight_XP = pick(z_weight),
                              .z_bias_X = pick(z_bias),
                              .qk_conv_XW = pick(qk_conv),
                              .v_conv_XW = pick(v_conv),
                              .A_log_G = pick(A_log),
                              .dt_bias_GK = pick(dt_bias),
                              .norm_weight_V = pick(weight),
                              .sequences = pick(sequences),
                              .qk_history_SWX = pick(qk_history),
                              .v_history_SWX = pick(v_history),
                              .state_SGKV = pick(state),
                              .y_SX = pick(y),
                              .form = c.form,
                              .lower_bound = c.form == ops::DecayForm::kBounded ? -5.0 : 0.0,
                              .beta_scale = c.per_channel ? 1.0 : 2.0,
                              .activation = c.per_channel ? ops::GateActivation::kSigmoid
                                                          : ops::GateActivation::kSilu});
  });
}

void add_delta_step(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, const StepCase& c, const std::string& what) {
    const std::string name = "S=" + std::to_string(c.S) + " H=" + std::to_string(c.H) +
                             " G=" + std::to_string(c.G) + " K=" + std::to_string(c.K) +
                             " V=" + std::to_string(c.V) + " W=" + std::to_string(c.W) + what +
                             (c.is_low_rank ? ", low rank" : "");
    cases.push_back(
        {"delta_step", name, set, [c](const CaseRun& run) { delta_step_case(run, c); }});
  };
  constexpr auto kSmall = CaseSet::kSmall;
  add(kSmall, {5, 2, 2, 32, 64, 4, true, true}, ", a decay per channel");
  add(kSmall, {3, 1, 2, 64, 64, 4, false, true}, ", a decay per head");
  add(kSmall, {2, 1, 1, 128, 128, 4, true, true, ops::DecayForm::kBounded}, ", bounded decay");
  add(kSmall, {1, 1, 1, 64, 128, 4, false, false}, ", no output gate");
  add(kSmall, {3, 2, 4, 16, 32, 2, false, true, ops::DecayForm::kSoftplus, Placement::kOddRows},
      ", odd row strides");
  add(kSmall, {2, 1, 3, 16, 16, 8, true, true, ops::DecayForm::kSoftplus, Placement::kStridedRows},
      ", strided rows");
  add(CaseSet::kFull, {256, 4, 8, 64, 64, 4, false, true}, ", a decay per head");
  const auto add_low_rank = [&](CaseSet set, StepCase c) {
    c.is_low_rank = true;
    add(set, c, ", a decay per channel");
  };
  add_low_rank(kSmall, {3, 2, 2, 32, 64, 4, true, true});
  add_low_rank(kSmall,
               {2, 1, 3, 16, 32, 4, true, true, ops::DecayForm::kBounded, Placement::kStridedRows});
  add_low_rank(kSmall,
               {1, 1, 1, 128, 128, 4, true, true, ops::DecayForm::kSoftplus, Placement::kOddRows});
  add_low_rank(CaseSet::kFull, {256, 8, 8, 32, 64, 4, true, true});
}

}  // namespace

void add_mixer_cases(std::vector<OpCase>& cases) {
  add_short_conv(cases);
  add_short_conv_norm(cases);
  add_l2_norm(cases);
  add_delta_gate(cases);
  add_delta_step(cases);
}

}  // namespace deltatrain::verify
