// The functions of this backend, one group per file.
#pragma once

#include "ops/op_table.h"

namespace deltatrain::backend::cuda {

void linear_forward(const Context& context, const ops::LinearForward& args);
void linear_backward(const Context& context, const ops::LinearBackward& args);
bool linear_swiglu_forward(const Context& context, const ops::LinearSwigluForward& args);
bool linear_swiglu_backward(const Context& context, const ops::LinearSwigluBackward& args);
void embedding_forward(const Context& context, const ops::EmbeddingForward& args);
void embedding_backward(const Context& context, const ops::EmbeddingBackward& args);
bool norm_linear(const Context& context, const ops::NormLinear& args, const Tensor& workspace);
void rms_norm_forward(const Context& context, const ops::RmsNormForward& args);
void rms_norm_backward(const Context& context, const ops::RmsNormBackward& args);
void gated_rms_norm_forward(const Context& context, const ops::GatedRmsNormForward& args);
void gated_rms_norm_backward(const Context& context, const ops::GatedRmsNormBackward& args);
void short_conv_forward(const Context& context, const ops::ShortConvForward& args);
void short_conv_backward(const Context& context, const ops::ShortConvBackward& args);
void short_conv_norm_forward(const Context& context, const ops::ShortConvNormForward& args);
void short_conv_norm_backward(const Context& context, const ops::ShortConvNormBackward& args);
void l2_norm_forward(const Context& context, const ops::L2NormForward& args);
void l2_norm_backward(const Context& context, const ops::L2NormBackward& args);
void delta_gate_forward(const Context& context, const ops::DeltaGateForward& args);
void delta_gate_backward(const Context& context, const ops::DeltaGateBackward& args);
void delta_step(const Context& context, const ops::DeltaStep& args);
void rotary(const Context& context, const ops::Rotary& args);
void causal_attention_forward(const Context& context, const ops::CausalAttentionForward& args);
void causal_attention_backward(const Context& context, const ops::CausalAttentionBackward& args);
void mla_key_forward(const Context& context, const ops::MlaKeyForward& args);
void mla_key_backward(const Context& context, const ops::MlaKeyBackward& args);
void swiglu_forward(const Context& context, const ops::SwigluForward& args);
void swiglu_backward(const Context& context, const ops::SwigluBackward& args);
void cross_entropy(const Context& context, const ops::CrossEntropy& args);
void sum_of_squares(const Context& context, const ops::SumOfSquares& args);
void finish_gradient_norm(const Context& context, const ops::FinishGradientNorm& args);
void adamw(const Context& context, const ops::AdamW& args);
void add(const Context& context, const ops::Add& args);
void convert(const Context& context, const ops::Convert& args);
void sum_to(const Context& context, const ops::SumTo& args);
void row_argmax(const Context& context, const ops::RowArgmax& args);
void checksum(const Context& context, const ops::Checksum& args);
void copy_rows(const Context& context, const ops::CopyRows& args);
void token_scores(const Context& context, const ops::TokenScores& args);
void token_choices(const Context& context, const ops::TokenChoices& args);

}  // namespace deltatrain::backend::cuda
