// How a GemmLibrary chooses and runs the algorithms of its products.
#pragma once

#include <string>

namespace deltatrain::backend::cuda {

struct GemmOptions {
  std::string file;  // where timed choices are kept: "" for nowhere; may not exist yet
  bool search = true;
  // Algorithms that share out a sum among blocks are left out too, the file is not looked at and nothing is timed: all
  // elements of a product are summed in one order, the same in every run.
  bool uniform_rows = false;
  // What a product overwrites is cleared before it, and the library's workspace once: for tools that watch every access
  // but not the stores of the library's kernels.
  bool clear_outputs = false;
};

}  // namespace deltatrain::backend::cuda
