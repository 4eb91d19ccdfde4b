// What a sample source hands out, as a number: for ranks that have to read the same data.
#pragma once

#include <string>

#include "data/sample_source.h"

namespace deltatrain::data {

// XXH3-64, in hexadecimal, of the sizes of the source and of samples spread evenly over one epoch
// (all of them where there are no more than 64): inputs and labels. Throws what reading throws.
std::string source_digest(const SampleSource& source);

}  // namespace deltatrain::data
