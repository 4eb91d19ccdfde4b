// Cases of rotary, mla_key and causal_attention.
#include <cmath>

#include "ops/causal_attention.h"
#include "ops/mla_key.h"
#include "ops/rotary.h"
#include "verify/op_case_list.h"

namespace deltatrain::verify {

namespace {

std::string lengths_text(const std::vector<int32_t>& offsets) {
  if (offsets.size() == 2) return "T=" + std::to_string(offsets[1]);
  std::string text = "packed";
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    text += (s == 0 ? " " : "+") + std::to_string(offsets[s + 1] - offsets[s]);
  }
  return text;
}

// --- rotary

void rotary_case(const CaseRun& run, const std::vector<int32_t>& offsets, int64_t H, int64_t X,
                 Placement placement, bool starts, bool in_place, ops::RotaryDirection direction) {
  OpTrial trial = run.trial("rotary");
  const int64_t R = offsets.back();
  Argument& x = trial.activation("x_RHX", {R, H, X}, normal(), placement);
  const Argument& y =
      in_place ? trial.changed(x, Quantity::kElementwise)
               : trial.activation_output("y_RHX", {R, H, X}, Quantity::kElementwise, placement);
  const SequenceArgument& sequences = trial.sequences(offsets);
  std::vector<int32_t> positions;
  for (int64_t s = 0; s < sequences.num(); ++s)
    positions.push_back(static_cast<int32_t>(s * s * 1000 + 5));
  const Argument* start_positions =
      starts ? &trial.integers("start_positions_S", positions) : nullptr;
  const double theta = starts ? 10000 : 500000;
  trial.run([&](const Context& context, const Pick& pick) {
    ops::rotary(context,
                {pick(x), pick(y), pick(sequences), pick(start_positions), theta, direction});
  });
}

void add_rotary(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, const std::vector<int32_t>& offsets, int64_t H, int64_t X,
                            Placement placement, bool starts, bool in_place,
                            ops::RotaryDirection direction) {
    std::string name =
        lengths_text(offsets) + " H=" + std::to_string(H) + " X=" + std::to_string(X);
    if (placement == Placement::kStridedHeads) name += ", strided heads";
    if (placement == Placement::kOddRows) name += ", odd row stride";
    if (starts) name += ", start positions";
    if (in_place) name += ", in place";
    if (direction == ops::RotaryDirection::kBackward) name += ", backward";
    cases.push_back({"rotary", name, set, [=](const CaseRun& run) {
                       rotary_case(run, offsets, H, X, placement, starts, in_place, direction);
                     }});
  };
  using P = Placement;
  using D = ops::RotaryDirection;
  const std::vector<int32_t> packed = {0, 1, 18, 82};
  add(CaseSet::kSmall, packed, 4, 32, P::kStridedHeads, false, true, D::kForward);
  add(CaseSet::kSmall, packed, 4, 32, P::kStridedHeads, true, false, D::kBackward);
  add(CaseSet::kSmall, {0, 63}, 1, 8, P::kOddRows, false, false, D::kForward);
  add(CaseSet::kSmall, {0, 1, 2, 3}, 2, 6, P::kContiguous, true, true, D::kForward);
  add(CaseSet::kFull, {0, 2048}, 2, 64, P::kContiguous, false, false, D::kForward);
  add(CaseSet::kFull, {0, 1000}, 16, 32, P::kStridedHeads, false, true, D::kBackward);
}

// --- mla_key

void mla_key_case(const CaseRun& run, int64_t R, int64_t H, int64_t nope, int64_t rope,
                  Placement nope_placement, Placement rope_placement) {
  {
    OpTrial trial = run.trial("mla_key_forward");
    const Argument& k_nope = trial.activation("k_nope_RHX", {R, H, nope}, normal(), nope_placement);
    const Argument& k_rope = trial.activation("k_rope_RX", {R, rope}, normal(), rope_placement);
    const Argument& k = trial.activation_output("k_RHK", {R, H, nope + rope}, Quantity::kExact);
    trial.run([&](const Context& context, const Pick& pick) {
      ops::mla_key_forward(context, {pick(k_nope), pick(k_rope), pick(k)});
    });
  }
  OpTrial trial = run.trial("mla_key_backward");
  const Argument& dk = trial.activation("dk_RHK", {R, H, nope + rope});
  const Argument& dk_nope =
      trial.activation_output("dk_nope_RHX", {R, H, nope}, Quantity::kExact, nope_placement);
  const Argument& dk_rope =
      trial.activation_output("dk_rope_RX", {R, rope}, Quantity::kElementwise, rope_placement);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::mla_key_backward(context, {pick(dk), pick(dk_nope), pick(dk_rope)});
  });
}

void add_mla_key(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, int64_t R, int64_t H, int64_t nope, int64_t rope,
                            Placement nope_placement, Placement rope_placement) {
    cases.push_back({"mla_key",
                     "R=" + std::to_string(R) + " H=" + std::to_string(H) + " " +
                         std::to_string(nope) + "+" + std::to_string(rope),
                     set, [=](const CaseRun& run) {
                       mla_key_case(run, R, H, nope, rope, nope_placement, rope_placement);
                     }});
  };
  using P = Placement;
  add(CaseSet::kSmall, 63, 4, 32, 32, P::kStridedHeads, P::kStridedRows);
  add(CaseSet::kSmall, 17, 3, 7, 10, P::kStridedHeads, P::kOddRows);
  add(CaseSet::kSmall, 1, 1, 8, 8, P::kContiguous, P::kContiguous);
  add(CaseSet::kFull, 1000, 16, 32, 32, P::kStridedHeads, P::kStridedRows);
}

// --- causal_attention

struct Heads {
  int64_t H;
  int64_t K;
  int64_t V;
};

void attention_case(const CaseRun& run, const std::vector<int32_t>& offsets, const Heads& heads,
                    Placement v_placement, double deviation) {
  const int64_t R = offsets.back();
  const auto [H, K, V] = heads;
  const double scale = 1 / std::sqrt(static_cast<double>(K));
  OpTrial trial = run.trial("causal_attention_forward");
  trial.keep_when_exact();
  const Argument& q = trial.activation("q_RHK", {R, H, K}, normal(deviation));
  const Argument& k = trial.activation("k_RHK", {R, H, K}, normal(deviation));
  const Argument& v = trial.activation("v_RHV", {R, H, V}, normal(), v_placement);
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument& o = trial.activation_output("o_RHV", {R, H, V}, Quantity::kAttention);
  const Argument& lse = trial.statistic_output("lse_RH", {R, H}, Quantity::kStatistic);
  const auto call = [&](const Context& context, const Pick& pick) {
    ops::CausalAttentionForward args;
    args.q_RHK = pick(q);
    args.k_RHK = pick(k);
    args.v_RHV = pick(v);
    args.sequences = pick(sequences);
    args.o_RHV = pick(o);
    args.lse_RH = pick(lse);
    args.scale = scale;
    ops::causal_attention_forward(context, args);
  };
  trial.run(call);
  if (sequences.num() == 1 && R > 64) trial.expect_prefix_unchanged(call, R, {1, 64, R - 1});

  OpTrial back = run.trial("causal_attention_backward");
  back.keep_when_exact();
  const Argument& d_o = back.activation("do_RHV", {R, H, V});
  const Argument& q2 = back.activation("q_RHK", {R, H, K}, trial.values(q));
  const Argument& k2 = back.activation("k_RHK", {R, H, K}, trial.values(k));
  const Argument& v2 = back.activation("v_RHV", {R, H, V}, trial.values(v), v_placement);
  const Argument& o2 = back.activation("o_RHV", {R, H, V}, trial.values(o));
  const Argument& lse2 = back.statistic("lse_RH", {R, H}, trial.values(lse));
  const SequenceArgument& sequences2 = back.sequences(offsets);
  const Argument& dq = back.activation_output("dq_RHK", {R, H, K}, Quantity::kAttention);
  const Argument& dk = back.activation_output("dk_RHK", {R, H, K}, Quantity::kAttention);
  const Argument& dv =
      back.activation_output("dv_RHV", {R, H, V}, Quantity::kAttention, v_placement);
  back.run([&](const Context& context, const Pick& pick) {
    ops::causal_attention_backward(
        context, {pick(d_o), pick(q2), pick(k2), pick(v2), pick(o2), pick(lse2), pick(sequences2),
                  pick(dq), pick(dk), pick(dv), scale});
  });
}

// New tokens of several sequences, each behind a cache of its own length.
void cached_case(const CaseRun& run, const std::vector<int32_t>& offsets,
                 const std::vector<int32_t>& lengths, int64_t room, const Heads& heads) {
  OpTrial trial = run.trial("causal_attention_forward");
  const int64_t R = offsets.back();
  const auto [H, K, V] = heads;
  const Argument& q = trial.activation("q_RHK", {R, H, K});
  const Argument& k = trial.activation("k_RHK", {R, H, K});
  const Argument& v = trial.activation("v_RHV", {R, H, V}, normal(), Placement::kStridedHeads);
  const SequenceArgument& sequences = trial.sequences(offsets);
  const Argument& o = trial.activation_output("o_RHV", {R, H, V}, Quantity::kAttention);
  const Argument& k_cache = trial.changed(
      trial.activation("k_cache_SXHK", {sequences.num(), room, H, K}), Quantity::kExact);
  const Argument& v_cache = trial.changed(
      trial.activation("v_cache_SXHV", {sequences.num(), room, H, V}), Quantity::kExact);
  const Argument& cache_lengths = trial.integers("cache_lengths_S", lengths);
  trial.run([&](const Context& context, const Pick& pick) {
    ops::CausalAttentionForward args;
    args.q_RHK = pick(q);
    args.k_RHK = pick(k);
    args.v_RHV = pick(v);
    args.sequences = pick(sequences);
    args.o_RHV = pick(o);
    args.k_cache_SXHK = pick(k_cache);
    args.v_cache_SXHV = pick(v_cache);
    args.cache_lengths_S = pick(cache_lengths);
    args.scale = 1 / std::sqrt(static_cast<double>(heads.K));
    ops::causal_attention_forward(context, args);
  });
}

void add_attention(std::vector<OpCase>& cases) {
  const auto add = [&cases](CaseSet set, const std::vector<int32_t>& offsets, const Heads& heads,
                            Placement v_placement, double deviation) {
    std::string name = lengths_text(offsets) + " H=" + std::to_string(heads.H) + " " +
                       std::to_string(heads.K) + "x" + std::to_string(heads.V);
    if (v_placement == Placement::kStridedHeads) name += ", strided v";
    if (v_placement == Placement::kOddRows) name += ", odd row stride of v";
    if (deviation != 1) name += ", sharp";
    cases.push_back({"causal_attention", name, set, [=](const CaseRun& run) {
                       attention_case(run, offsets, heads, v_placement, deviation);
                     }});
  };
  using P = Placement;
  const std::vector<int32_t> packed = {0, 1, 64, 129, 132};
  add(CaseSet::kSmall, packed, {2, 64, 64}, P::kStridedHeads, 1);
  add(CaseSet::kSmall, {0, 129}, {1, 64, 64}, P::kContiguous, 1);
  add(CaseSet::kSmall, {0, 65}, {4, 16, 16}, P::kStridedHeads, 4);
  for (const int32_t T : {1, 17, 63, 64})
    add(CaseSet::kSmall, {0, T}, {2, 32, 16}, P::kContiguous, 1);
  // Short sequences on both sides of the edges of tiles, and scores of up to 70.
  add(CaseSet::kSmall, {0, 3, 5, 6, 63, 65, 72, 136, 199, 263, 264, 330}, {1, 64, 64},
      P::kStridedHeads, 4);
  // Widths that 16 bytes divide in f32 alone, and some that they never do.
  add(CaseSet::kSmall, {0, 130}, {2, 20, 12}, P::kStridedHeads, 1);
  add(CaseSet::kSmall, {0, 70}, {2, 18, 10}, P::kContiguous, 1);
  add(CaseSet::kSmall, {0, 70}, {2, 16, 16}, P::kOddRows, 1);
  // Enough sequences and heads for backward to keep a large device busy by groups of warps, with several pieces of keys
  // each, and blocks that take a second one.
  const std::vector<int32_t> nine = {0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800};
  add(CaseSet::kSmall, nine, {16, 16, 16}, P::kContiguous, 1);
  for (const int32_t T : {2, 3, 15, 16, 127, 513})
    add(CaseSet::kFull, {0, T}, {2, 64, 64}, P::kStridedHeads, 1);
  add(CaseSet::kFull, {0, 2048}, {2, 64, 64}, P::kContiguous, 1);
  add(CaseSet::kFull, {0, 200}, {1, 192, 128}, P::kContiguous, 1);
  add(CaseSet::kFull, packed, {2, 128, 128}, P::kContiguous, 3);
  // Sequences and heads enough to fill a large card with one block each.
  const std::vector<int32_t> many = {0, 200, 393, 457, 522, 651, 652, 844, 972};
  add(CaseSet::kFull, many, {26, 64, 64}, P::kStridedHeads, 1);
  add(CaseSet::kFull, many, {26, 48, 32}, P::kContiguous, 3);
  const auto cached = [&cases](
                          CaseSet set, const std::string& name, const std::vector<int32_t>& offsets,
                          const std::vector<int32_t>& lengths, int64_t room, const Heads& heads) {
    cases.push_back({"causal_attention", name, set,
                     [=](const CaseRun& run) { cached_case(run, offsets, lengths, room, heads); }});
  };
  cached(CaseSet::kSmall, "cache, single tokens", {0, 1, 2, 3}, {0, 63, 70}, 80, {2, 64, 64});
  cached(CaseSet::kSmall, "cache, mixed lengths", {0, 5, 6, 40}, {0, 12, 3}, 50, {2, 16, 16});
  cached(CaseSet::kFull, "cache, long", {0, 1, 65}, {511, 100}, 512, {4, 64, 64});
}

}  // namespace

void add_attention_cases(std::vector<OpCase>& cases) {
  add_rotary(cases);
  add_mla_key(cases);
  add_attention(cases);
}

}  // namespace deltatrain::verify
