// Digests by which two runs show that they used the same documents and prompts, equal to the
// harness's.
#pragma once

#include <string>

#include "base/hash.h"
#include "eval/tasks.h"

namespace deltatrain::eval {

struct SampleHashes {
  std::string document;  // of the document as JSON, indented by two blanks
  std::string prompt;    // of the first choice's context
  std::string target;
};

SampleHashes hash_sample(const Json& document, const std::string& prompt,
                         const std::string& target);

// Of all documents of a task, in order.
class TaskHash {
 public:
  void add(const SampleHashes& sample);
  std::string hex() { return digest_.hex(); }  // once, at the end

 private:
  Sha256 digest_;
};

}  // namespace deltatrain::eval
