#include "backend/reference/reference_tables.h"
#include "ops/reference/causal_attention.h"
#include "ops/reference/cross_entropy.h"
#include "ops/reference/embedding.h"
#include "ops/reference/gated_rms_norm.h"
#include "ops/reference/linear.h"
#include "ops/reference/mla_key.h"
#include "ops/reference/rms_norm.h"
#include "ops/reference/rotary.h"
#include "ops/reference/swiglu.h"
#include "ops/reference/token_choices.h"
#include "ops/reference/token_scores.h"

namespace deltatrain::backend {

namespace {

namespace loops = ops::reference;

template <class T>
using In = View<const T>;
template <class T>
using Out = View<T>;

void linear_forward(const Context&, const ops::LinearForward& a) {
  with_scalar_of("linear_forward", a.x_RD, [&](auto scalar) {
    using T = decltype(scalar);
    loops::linear_forward<T>(In<T>(a.x_RD), In<T>(a.weight_XD), In<T>(a.bias_X), a.y_mode,
                             Out<T>(a.y_RX));
  });
}

void linear_backward(const Context&, const ops::LinearBackward& a) {
  with_scalar_of("linear_backward", a.dy_RX, [&](auto scalar) {
    using T = decltype(scalar);
    loops::linear_backward<T>(In<T>(a.dy_RX), In<T>(a.x_RD), In<T>(a.weight_XD), a.dx_mode,
                              a.dweight_mode, Out<T>(a.dx_RD), Out<T>(a.dweight_XD),
                              Out<T>(a.dbias_X));
  });
}

void embedding_forward(const Context&, const ops::EmbeddingForward& a) {
  with_scalar_of("embedding_forward", a.weight_ND, [&](auto scalar) {
    using T = decltype(scalar);
    loops::embedding_forward<T>(In<int32_t>(a.ids_R), In<T>(a.weight_ND), Out<T>(a.y_RD));
  });
}

void embedding_backward(const Context&, const ops::EmbeddingBackward& a) {
  with_scalar_of("embedding_backward", a.dy_RD, [&](auto scalar) {
    using T = decltype(scalar);
    loops::embedding_backward<T>(In<int32_t>(a.ids_R), In<T>(a.dy_RD), Out<T>(a.dweight_ND));
  });
}

void rms_norm_forward(const Context&, const ops::RmsNormForward& a) {
  with_scalar_of("rms_norm_forward", a.y_RD, [&](auto scalar) {
    using T = decltype(scalar);
    loops::rms_norm_forward<T>(In<T>(a.x_RD), In<T>(a.residual_RD), In<T>(a.weight_D), a.eps,
                               Out<T>(a.sum_RD), Out<T>(a.y_RD), Out<T>(a.inv_rms_R));
  });
}

void rms_norm_backward(const Context&, const ops::RmsNormBackward& a) {
  with_scalar_of("rms_norm_backward", a.dy_RD, [&](auto scalar) {
    using T = decltype(scalar);
    loops::rms_norm_backward<T>(In<T>(a.dy_RD), In<T>(a.sum_RD), In<T>(a.weight_D),
                                In<T>(a.inv_rms_R), In<T>(a.dsum_RD), Out<T>(a.dx_RD),
                                Out<T>(a.dweight_D));
    if (!a.dx_rounded_RD.defined()) return;
    const View<const T> dx_RD = In<T>(a.dx_RD);
    const View<T> dx_rounded_RD = Out<T>(a.dx_rounded_RD);
    for (int64_t r = 0; r < dx_RD.size(0); ++r)
      for (int64_t d = 0; d < dx_RD.size(1); ++d) dx_rounded_RD(r, d) = dx_RD(r, d);
  });
}

void gated_rms_norm_forward(const Context&, const ops::GatedRmsNormForward& a) {
  with_scalar_of("gated_rms_norm_forward", a.o_RGV, [&](auto scalar) {
    using T = decltype(scalar);
    loops::gated_rms_norm_forward<T>(In<T>(a.o_RGV), In<T>(a.gate_RGV), In<T>(a.weight_V), a.eps,
                                     a.activation, Out<T>(a.y_RGV), Out<T>(a.inv_rms_RG));
  });
}

void gated_rms_norm_backward(const Context&, const ops::GatedRmsNormBackward& a) {
  with_scalar_of("gated_rms_norm_backward", a.dy_RGV, [&](auto scalar) {
    using T = decltype(scalar);
    loops::gated_rms_norm_backward<T>(In<T>(a.dy_RGV), In<T>(a.o_RGV), In<T>(a.gate_RGV),
                                      In<T>(a.weight_V), In<T>(a.inv_rms_RG), a.activation,
                                      Out<T>(a.do_RGV), Out<T>(a.dgate_RGV), Out<T>(a.dweight_V));
  });
}

void rotary(const Context&, const ops::Rotary& a) {
  with_scalar_of("rotary", a.x_RHX, [&](auto scalar) {
    using T = decltype(scalar);
    loops::rotary<T>(In<T>(a.x_RHX), a.sequences, In<int32_t>(a.start_positions_S), a.theta,
                     a.direction, Out<T>(a.y_RHX));
  });
}

void causal_attention_forward(const Context&, const ops::CausalAttentionForward& a) {
  with_scalar_of("causal_attention_forward", a.q_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::causal_attention_forward<T>(In<T>(a.q_RHK), In<T>(a.k_RHK), In<T>(a.v_RHV), a.sequences,
                                       a.scale, Out<T>(a.o_RHV), Out<T>(a.lse_RH),
                                       Out<T>(a.k_cache_SXHK), Out<T>(a.v_cache_SXHV),
                                       In<int32_t>(a.cache_lengths_S));
  });
}

void causal_attention_backward(const Context&, const ops::CausalAttentionBackward& a) {
  with_scalar_of("causal_attention_backward", a.q_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::causal_attention_backward<T>(In<T>(a.do_RHV), In<T>(a.q_RHK), In<T>(a.k_RHK),
                                        In<T>(a.v_RHV), In<T>(a.o_RHV), In<T>(a.lse_RH),
                                        a.sequences, a.scale, Out<T>(a.dq_RHK), Out<T>(a.dk_RHK),
                                        Out<T>(a.dv_RHV));
  });
}

void mla_key_forward(const Context&, const ops::MlaKeyForward& a) {
  with_scalar_of("mla_key_forward", a.k_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::mla_key_forward<T>(In<T>(a.k_nope_RHX), In<T>(a.k_rope_RX), Out<T>(a.k_RHK));
  });
}

void mla_key_backward(const Context&, const ops::MlaKeyBackward& a) {
  with_scalar_of("mla_key_backward", a.dk_RHK, [&](auto scalar) {
    using T = decltype(scalar);
    loops::mla_key_backward<T>(In<T>(a.dk_RHK), Out<T>(a.dk_nope_RHX), Out<T>(a.dk_rope_RX));
  });
}

void swiglu_forward(const Context&, const ops::SwigluForward& a) {
  with_scalar_of("swiglu_forward", a.y_RF, [&](auto scalar) {
    using T = decltype(scalar);
    loops::swiglu_forward<T>(In<T>(a.gate_up_RX), Out<T>(a.y_RF));
  });
}

void swiglu_backward(const Context&, const ops::SwigluBackward& a) {
  with_scalar_of("swiglu_backward", a.dy_RF, [&](auto scalar) {
    using T = decltype(scalar);
    loops::swiglu_backward<T>(In<T>(a.dy_RF), In<T>(a.gate_up_RX), Out<T>(a.dgate_up_RX),
                              Out<T>(a.y_RF));
  });
}

void cross_entropy(const Context&, const ops::CrossEntropy& a) {
  with_scalar_of("cross_entropy", a.logits_RN, [&](auto scalar) {
    using T = decltype(scalar);
    loops::cross_entropy<T>(Out<T>(a.logits_RN), In<int32_t>(a.labels_R), a.grad_scale, a.gradient,
                            Out<T>(a.loss_R), Out<T>(a.lse_R));
  });
}

void token_scores(const Context&, const ops::TokenScores& a) {
  with_scalar_of("token_scores", a.logits_RN, [&](auto scalar) {
    using T = decltype(scalar);
    loops::token_scores<T>(In<T>(a.logits_RN), In<int32_t>(a.rows_T), In<int32_t>(a.ids_T),
                           a.rounding, Out<T>(a.log_probability_T), Out<int32_t>(a.is_greedy_T));
  });
}

void token_choices(const Context&, const ops::TokenChoices& a) {
  with_scalar_of("token_choices", a.logits_RN, [&](auto scalar) {
    using T = decltype(scalar);
    loops::token_choices<T>(In<T>(a.logits_RN), In<int32_t>(a.given_R), In<double>(a.temperature_R),
                            In<double>(a.top_p_R), In<double>(a.uniform_R), In<int32_t>(a.top_k_R),
                            In<int32_t>(a.num_top_R), Out<int32_t>(a.id_R), Out<T>(a.logit_R),
                            Out<T>(a.lse_R), Out<int32_t>(a.top_ids_RX), Out<T>(a.top_logits_RX));
  });
}

}  // namespace

void fill_reference_dense_ops(ops::OpTable& table) {
  table.linear = {linear_forward, linear_backward};
  table.embedding = {embedding_forward, embedding_backward};
  table.rms_norm = {rms_norm_forward, rms_norm_backward};
  table.gated_rms_norm = {gated_rms_norm_forward, gated_rms_norm_backward};
  table.rotary = {rotary};
  table.causal_attention = {causal_attention_forward, causal_attention_backward};
  table.mla_key = {mla_key_forward, mla_key_backward};
  table.swiglu = {swiglu_forward, swiglu_backward};
  table.cross_entropy = {cross_entropy};
  table.token_scores = {token_scores};
  table.token_choices = {token_choices};
}

}  // namespace deltatrain::backend
