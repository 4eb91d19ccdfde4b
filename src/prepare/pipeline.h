// Shards to parts on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/reporter.h"
#include "formats/indexed_dataset.h"
#include "prepare/part_file.h"
#include "prepare/plan.h"
#include "prepare/text_encoder.h"

namespace deltatrain::prepare {

struct PipelineOptions {
  RecordOptions records;
  formats::TokenType token_type = formats::TokenType::kI32;
  int64_t num_workers = 1;
  int64_t block_bytes = int64_t{1} << 19;
  int64_t max_bytes_under_way = int64_t{1}
                                << 28;  // of text; single larger records still pass, one at a time
};

// Makes the parts of these shards; stem_of gives a shard's files. Parts finished before an error
// stay. Throws the first error, in the order of shards, of those that occurred. `done_bytes` of
// `total_bytes` were finished before, for progress.
void make_parts(const Plan& plan, const std::vector<int64_t>& shards, const TextEncoder& encoder,
                const PipelineOptions& options,
                const std::function<std::string(int64_t shard)>& stem_of, int64_t done_bytes,
                int64_t total_bytes, Reporter& reporter);

}  // namespace deltatrain::prepare
