// Where each parameter of a model lies in Megatron's checkpoints, and back.
//
// Megatron with Primus keeps the projections of a mixer in one matrix, gate and up projection of an
// MLP in another, and numbers mixers and MLPs through: block b is the layers 2b and 2b + 1. Here a
// tensor of one side is a list of runs of rows of the other side's tensors; both directions follow
// from one table. Names and layouts: docs/formats/megatron.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "tensor/shape.h"

namespace deltatrain::convert {

// Which modules Megatron builds: Transformer Engine's, which hold a norm and the matrix behind it
// ("te"), or plain ones ("no-te").
enum class LayerSpec : uint8_t { kNoTe, kTe };

// Consecutive rows of a tensor. An empty name: rows that the other side doesn't have.
struct RowRun {
  std::string name;
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

// A tensor as rows that lie in other tensors, in order.
struct TensorRows {
  std::string name;
  Shape shape;
  int64_t row_elements = 1;
  std::vector<RowRun> runs;
};

// What Megatron has and no model of ours: not read, and written as ones.
enum class Unmapped : uint8_t {
  kNo,
  kOnes,  // KDA's gate_norm under Transformer Engine, which no forward pass applies
};

struct MegatronTensor {
  TensorRows rows;  // in terms of Hugging Face names
  Unmapped unmapped = Unmapped::kNo;
};

// All parameters under their Megatron names, in the order in which Megatron's modules register
// them, which is the order of its optimizer. `vocabulary_rows` >= vocab_size: rows past the
// vocabulary are runs without a name. The config passes find_megatron_problem().
std::vector<MegatronTensor> megatron_tensors(const ModelConfig& config, LayerSpec spec,
                                             int64_t vocabulary_rows);

// The same table the other way: each Hugging Face tensor in terms of Megatron's, by name.
std::map<std::string, TensorRows> rows_in_megatron(const ModelConfig& config,
                                                   const std::vector<MegatronTensor>& tensors);

// Rows of the embedding once padded: the next multiple of 128, Megatron's default.
int64_t padded_vocabulary(int64_t vocab_size);

// Why Megatron with Primus has no such model (or none with the same function under this spec);
// empty when it has.
std::string find_megatron_problem(const ModelConfig& config, LayerSpec spec);

// Megatron's rule: everything decays but tensors of one axis.
bool megatron_decays(const Shape& shape);

const char* layer_spec_name(LayerSpec spec);  // "no-te", "te"

}  // namespace deltatrain::convert
