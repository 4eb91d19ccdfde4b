// ngram_baseline TRAIN VALID VOCAB_SIZE: losses of Kneser-Ney models fitted on one token file, on
// another.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "data/sample_source.h"  // find_token_files
#include "eval/kneser_ney.h"
#include "formats/indexed_dataset.h"

namespace {

std::vector<int32_t> all_tokens(const std::string& prefix) {
  const deltatrain::formats::IndexedDataset dataset(deltatrain::data::find_token_files(prefix));
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.num_tokens()));
  dataset.read(0, tokens, 0);
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: ngram_baseline TRAIN_PREFIX VALID_PREFIX VOCAB_SIZE\n");
    return 2;
  }
  try {
    const std::vector<int32_t> train = all_tokens(argv[1]), valid = all_tokens(argv[2]);
    for (const int order : {2, 3}) {
      const deltatrain::eval::KneserNey model(train, order, std::stoll(argv[3]));
      std::printf("%d %.4f\n", order, model.mean_loss(valid));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ngram_baseline: %s\n", error.what());
    return 2;
  }
}
