// Cases of the gated delta rule: head shapes, lengths,
// packing, and the inputs that broke kernels elsewhere.
#include <cmath>

#include "ops/gated_delta_rule.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

enum class Decay : uint8_t {
  kTypical,    // as at initialisation: -0.001 to -1
  kNone,       // 0: nothing is forgotten
  kStrong,     // 0 to -20 a token
  kSaturated,  // -320 for about half of all tokens and channels, nearly 0 for the rest
  kSpike,      // nearly 0, and -320 for every channel of single tokens
};

enum class Keys : uint8_t {
  kRandom,
  kSame,   // one key for all tokens: the worst triangular system
  kZeros,  // every third key (and query) is zero
};

struct DeltaCase {
  int64_t H = 1;
  int64_t G = 1;
  int64_t K = 64;
  int64_t V = 64;
  bool per_channel = false;  // KDA
  std::vector<int32_t> offsets;
  Decay decay = Decay::kTypical;
  Keys keys = Keys::kRandom;
  int beta = -1;       // -1: sigmoid of normal values, else the constant 0 or 1
  bool states = true;  // initial and final state and their gradients
  Placement v_placement = Placement::kContiguous;

  int64_t num_decays() const { return per_channel ? K : 1; }
};

double decay_of(Decay decay, const RandomStream& stream, int64_t i, int64_t token) {
  const double u = stream.uniform(static_cast<uint64_t>(i));
  switch (decay) {
    case Decay::kTypical:
      return -std::exp(-6.9 + 6.9 * u);
    case Decay::kNone:
      return 0;
    case Decay::kStrong:
      return -20 * u;
    case Decay::kSaturated:
      return u < 0.5 ? -320 : -0.002 * u;
    case Decay::kSpike:
      return token % 23 == 19 ? -320 : -0.002 * u;
  }
  return 0;
}

// Rows of length K with norm 1.
std::vector<double> unit_rows(const DeltaCase& c, const std::string& case_name,
                              const std::string& name) {
  const int64_t R = c.offsets.back();
  const RandomStream stream(hash_text(case_name), name);
  std::vector<double> values(static_cast<size_t>(R * c.H * c.K));
  for (int64_t row = 0; row < R * c.H; ++row) {
    double sum_sq = 1e-6;
    for (int64_t k = 0; k < c.K; ++k) {
      const int64_t source = c.keys == Keys::kSame ? k : row * c.K + k;
      const bool zero = c.keys == Keys::kZeros && (row / c.H) % 3 == 1;
      const double x = zero ? 0 : stream.normal(static_cast<uint64_t>(source));
      values[static_cast<size_t>(row * c.K + k)] = x;
      sum_sq += x * x;
    }
    for (int64_t k = 0; k < c.K; ++k)
      values[static_cast<size_t>(row * c.K + k)] /= std::sqrt(sum_sq);
  }
  return values;
}

struct Inputs {
  const Argument& q;
  const Argument& k;
  const Argument& v;
  const Argument& g;
  const Argument& beta;
  const SequenceArgument& sequences;
  const Argument* initial;
};

Inputs make_inputs(OpTrial& trial, const DeltaCase& c, const std::string& name) {
  const int64_t R = c.offsets.back();
  const int64_t channels = c.G * c.num_decays();
  const Fill decay = [&c, channels](const RandomStream& stream, int64_t i) {
    return decay_of(c.decay, stream, i, i / channels);
  };
  const Fill beta = [&c](const RandomStream& stream, int64_t i) {
    return c.beta >= 0 ? c.beta : 1 / (1 + std::exp(-stream.normal(static_cast<uint64_t>(i))));
  };
  const Argument& q = trial.activation("q_RHK", {R, c.H, c.K}, unit_rows(c, name, "q"));
  const Argument& k = trial.activation("k_RHK", {R, c.H, c.K}, unit_rows(c, name, "k"));
  const Argument& v = trial.activation("v_RGV", {R, c.G, c.V}, normal(), c.v_placement);
  const Argument& g = trial.statistic("g_RGK", {R, c.G, c.num_decays()}, decay);
  const Argument& b = trial.statistic("beta_RG", {R, c.G}, beta);
  const SequenceArgument& sequences = trial.sequences(c.offsets);
  const Argument* initial = nullptr;
  if (c.states)
    initial = &trial.statistic("initial_state_SGKV", {sequences.num(), c.G, c.K, c.V}, normal(0.5));
  return {q, k, v, g, b, sequences, initial};
}

ops::GatedDeltaRuleForward forward_arguments(const Inputs& in, const Pick& pick,
                                             const DeltaCase& c) {
  ops::GatedDeltaRuleForward args;
  args.q_RHK = pick(in.q);
  args.k_RHK = pick(in.k);
  args.v_RGV = pick(in.v);
  args.g_RGK = pick(in.g);
  args.beta_RG = pick(in.beta);
  args.sequences = pick(in.sequences);
  args.initial_state_SGKV = pick(in.initial);
  args.scale = 1 / std::sqrt(static_cast<double>(c.K));
  return args;
}

void forward_case(const CaseRun& run, const DeltaCase& c) {
  OpTrial trial = run.trial("gated_delta_rule_forward");
  const Inputs in = make_inputs(trial, c, run.name);
  const int64_t R = c.offsets.back();
  const Argument* final_state = nullptr;
  if (c.states) {
    final_state = &trial.statistic_output("final_state_SGKV", {in.sequences.num(), c.G, c.K, c.V},
                                          Quantity::kDeltaOutput);
  }
  const Argument& o = trial.activation_output("o_RGV", {R, c.G, c.V}, Quantity::kDeltaOutput);
  const auto call = [&](const Context& context, const Pick& pick) {
    ops::GatedDeltaRuleForward args = forward_arguments(in, pick, c);
    args.final_state_SGKV = pick(final_state);
    args.o_RGV = pick(o);
    ops::gated_delta_rule_forward(context, args);
  };
  trial.run(call);
  if (in.sequences.num() == 1 && R > 65 && !c.states)
    trial.expect_prefix_unchanged(call, R, {1, 40, 64, R - 1});
}

void backward_case(const CaseRun& run, const DeltaCase& c) {
  OpTrial trial = run.trial("gated_delta_rule_backward");
  const Inputs in = make_inputs(trial, c, run.name);
  const int64_t R = c.offsets.back();
  const Shape states = {in.sequences.num(), c.G, c.K, c.V};
  const Argument& d_o = trial.activation("do_RGV", {R, c.G, c.V});
  const Argument* d_final = c.states ? &trial.statistic("d_final_state_SGKV", states) : nullptr;
  const Argument& o = trial.activation_output("o_RGV", {R, c.G, c.V}, Quantity::kDeltaOutput);
  const Argument& dq = trial.activation_output("dq_RHK", {R, c.H, c.K}, Quantity::kDeltaGradient);
  const Argument& dk = trial.activation_output("dk_RHK", {R, c.H, c.K}, Quantity::kDeltaGradient);
  const Argument& dv =
      trial.activation_output("dv_RGV", {R, c.G, c.V}, Quantity::kDeltaGradient, c.v_placement);
  const Argument& dg =
      trial.statistic_output("dg_RGK", {R, c.G, c.num_decays()}, Quantity::kDeltaGate);
  const Argument& dbeta = trial.statistic_output("dbeta_RG", {R, c.G}, Quantity::kDeltaGate);
  const Argument* d_initial =
      c.states ? &trial.statistic_output("d_initial_state_SGKV", states, Quantity::kDeltaGradient)
               : nullptr;
  trial.run([&](const Context& context, const Pick& pick) {
    ops::GatedDeltaRuleForward forward = forward_arguments(in, pick, c);
    forward.o_RGV = pick(o);
    forward.saved = pick.opaque(ops::gated_delta_rule_saved_bytes(context, forward));
    ops::gated_delta_rule_forward(context, forward);
    ops::GatedDeltaRuleBackward args;
    args.do_RGV = pick(d_o);
    args.d_final_state_SGKV = pick(d_final);
    args.q_RHK = forward.q_RHK;
    args.k_RHK = forward.k_RHK;
    args.v_RGV = forward.v_RGV;
    args.g_RGK = forward.g_RGK;
    args.beta_RG = forward.beta_RG;
    args.sequences = forward.sequences;
    args.initial_state_SGKV = forward.initial_state_SGKV;
    args.saved = forward.saved;
    args.dq_RHK = pick(dq);
    args.dk_RHK = pick(dk);
    args.dv_RGV = pick(dv);
    args.dg_RGK = pick(dg);
    args.dbeta_RG = pick(dbeta);
    args.d_initial_state_SGKV = pick(d_initial);
    args.scale = forward.scale;
    ops::gated_delta_rule_backward(context, args);
  });
}

// The sequence in two calls that carry the state in place, as in decoding.
void carried_case(const CaseRun& run, const DeltaCase& c, int64_t cut) {
  OpTrial trial = run.trial("gated_delta_rule_forward");
  const Inputs in = make_inputs(trial, c, run.name);
  const int64_t R = c.offsets.back();
  const Argument& state = trial.changed(
      trial.statistic("state_SGKV", {1, c.G, c.K, c.V}, constant(0)), Quantity::kDeltaOutput);
  const Argument& o = trial.activation_output("o_RGV", {R, c.G, c.V}, Quantity::kDeltaOutput);
  const SequenceArgument& first = trial.sequences({0, static_cast<int32_t>(cut)});
  const SequenceArgument& second = trial.sequences({0, static_cast<int32_t>(R - cut)});
  trial.run([&](const Context& context, const Pick& pick) {
    for (const bool is_second : {false, true}) {
      const int64_t begin = is_second ? cut : 0;
      const int64_t end = is_second ? R : cut;
      ops::GatedDeltaRuleForward args = forward_arguments(in, pick, c);
      args.q_RHK = args.q_RHK.rows(begin, end);
      args.k_RHK = args.k_RHK.rows(begin, end);
      args.v_RGV = args.v_RGV.rows(begin, end);
      args.g_RGK = args.g_RGK.rows(begin, end);
      args.beta_RG = args.beta_RG.rows(begin, end);
      args.sequences = pick(is_second ? second : first);
      args.initial_state_SGKV = pick(state);
      args.final_state_SGKV = pick(state);
      args.o_RGV = pick(o).rows(begin, end);
      ops::gated_delta_rule_forward(context, args);
    }
  });
}

std::string head_text(const DeltaCase& c) {
  std::string text = c.per_channel ? "KDA " : "GDN ";
  text += std::to_string(c.K) + "x" + std::to_string(c.V);
  if (c.H != 1 || c.G != 1) text += " H=" + std::to_string(c.H) + " G=" + std::to_string(c.G);
  if (c.offsets.size() == 2) return text + " T=" + std::to_string(c.offsets[1]);
  text += " packed";
  for (size_t s = 0; s + 1 < c.offsets.size(); ++s) {
    text += (s == 0 ? " " : "+") + std::to_string(c.offsets[s + 1] - c.offsets[s]);
  }
  return text;
}

class Adder {
 public:
  explicit Adder(std::vector<OpCase>& cases) : cases_(cases) {}

  void both(CaseSet set, const DeltaCase& c, const std::string& what = "") {
    std::string name = head_text(c) + what;
    if (!c.states) name += ", no states";
    cases_.push_back({"gated_delta_rule", name, set, [c](const CaseRun& run) {
                        forward_case(run, c);
                        backward_case(run, c);
                      }});
  }
  void carried(CaseSet set, const DeltaCase& c, int64_t cut) {
    cases_.push_back({"gated_delta_rule", head_text(c) + ", cut at " + std::to_string(cut), set,
                      [c, cut](const CaseRun& run) { carried_case(run, c, cut); }});
  }

 private:
  std::vector<OpCase>& cases_;
};

}  // namespace

void add_delta_rule_cases(std::vector<OpCase>& cases) {
  Adder add(cases);
  const std::vector<int32_t> packed = {0, 1, 64, 129, 132, 196};
  const auto heads = [](bool per_channel, int64_t H, int64_t G, int64_t K, int64_t V) {
    DeltaCase c;
    c.per_channel = per_channel;
    c.H = H;
    c.G = G;
    c.K = K;
    c.V = V;
    c.offsets = {0, 130};
    return c;
  };
  // Every head shape, at one length that is no multiple of a chunk, and packed.
  const std::vector<DeltaCase> shapes = {heads(false, 1, 2, 64, 64),   heads(false, 2, 2, 64, 128),
                                         heads(false, 1, 1, 128, 128), heads(false, 2, 4, 16, 16),
                                         heads(true, 2, 2, 32, 64),    heads(true, 1, 1, 64, 64),
                                         heads(true, 1, 1, 128, 128),  heads(true, 1, 2, 16, 32)};
  for (DeltaCase c : shapes) {
    const bool small = c.K <= 64 && c.V <= 64;
    add.both(small ? CaseSet::kSmall : CaseSet::kFull, c);
    c.states = false;
    c.v_placement = Placement::kStridedRows;
    add.both(CaseSet::kFull, c);
    c.states = true;
    c.offsets = packed;
    add.both(small ? CaseSet::kSmall : CaseSet::kFull, c, ", strided v");
  }
  // Sizes that no recipe has: right, or refused with the sizes there are.
  for (const bool per_channel : {false, true}) {
    for (const auto& [K, V] :
         {std::pair<int64_t, int64_t>{32, 32}, {48, 96}, {96, 96}, {192, 128}, {256, 256}}) {
      DeltaCase c = heads(per_channel, 1, 1, K, V);
      c.offsets = {0, 70};
      add.both(CaseSet::kFull, c);
    }
  }
  for (const bool per_channel : {false, true}) {
    const DeltaCase base = per_channel ? heads(true, 1, 2, 32, 64) : heads(false, 1, 2, 64, 64);
    for (const int32_t T : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 513, 2047, 2049}) {
      DeltaCase c = base;
      c.offsets = {0, T};
      const bool small = T == 1 || T == 17 || T == 63 || T == 64 || T == 65;
      add.both(small ? CaseSet::kSmall : CaseSet::kFull, c);
      c.states = false;
      add.both(CaseSet::kFull, c);
    }
    DeltaCase ones = base;  // many one-token documents, as packing makes them
    ones.offsets.clear();
    for (int32_t s = 0; s <= 70; ++s) ones.offsets.push_back(s);
    add.both(CaseSet::kSmall, [&] {
      DeltaCase c = ones;
      c.offsets.resize(6);
      return c;
    }());
    add.both(CaseSet::kFull, ones);
    DeltaCase odd = base;
    odd.v_placement = Placement::kOddRows;
    add.both(CaseSet::kSmall, odd, ", odd row stride of v");

    const auto extreme = [&](const std::string& what, const auto& change) {
      DeltaCase c = base;
      change(c);
      add.both(CaseSet::kSmall, c, what);
      c.states = false;
      c.offsets = packed;
      add.both(CaseSet::kFull, c, what);
    };
    extreme(", no decay", [](DeltaCase& c) { c.decay = Decay::kNone; });
    extreme(", strong decay", [](DeltaCase& c) { c.decay = Decay::kStrong; });
    extreme(", saturated decay", [](DeltaCase& c) { c.decay = Decay::kSaturated; });
    extreme(", one-token spikes", [](DeltaCase& c) { c.decay = Decay::kSpike; });
    extreme(", beta 0", [](DeltaCase& c) { c.beta = 0; });
    extreme(", beta 1", [](DeltaCase& c) { c.beta = 1; });
    extreme(", zero keys", [](DeltaCase& c) { c.keys = Keys::kZeros; });
    extreme(", same key, beta 1, no decay", [](DeltaCase& c) {
      c.keys = Keys::kSame;
      c.beta = 1;
      c.decay = Decay::kNone;
    });
    extreme(", same key, beta 1, saturated decay", [](DeltaCase& c) {
      c.keys = Keys::kSame;
      c.beta = 1;
      c.decay = Decay::kSaturated;
    });
    DeltaCase whole = base;
    whole.states = false;
    whole.offsets = {0, 200};
    add.both(CaseSet::kSmall, whole, ", prefix");
    for (const int64_t cut : {1, 3, 63, 64, 65, 199}) {
      add.carried(cut == 65 || cut == 199 ? CaseSet::kSmall : CaseSet::kFull, whole, cut);
    }
  }
}

}  // namespace deltatrain::verify
