#include "eval/sample_hashes.h"

#include <nlohmann/json.hpp>

namespace deltatrain::eval {

namespace {

std::string sha256(const std::string& text) {
  Sha256 digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

}  // namespace

SampleHashes hash_sample(const Json& document, const std::string& prompt,
                         const std::string& target) {
  return {sha256(document.dump(2)), sha256(prompt), sha256(target)};
}

void TaskHash::add(const SampleHashes& sample) {
  for (const std::string* part : {&sample.document, &sample.prompt, &sample.target})
    digest_.update(part->data(), part->size());
}

}  // namespace deltatrain::eval
