// The only way to a backend: the program and the tests ask here, everything else sees a Context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/context.h"
#include "dist/collectives.h"
#include "ops/op_table.h"

namespace deltatrain::backend {

struct BackendOptions {
  int num_threads = 0;    // kCpu: 0 means all cores that this process may use
  int device_index = 0;   // kCuda
  std::string gemm_file;  // kCuda: where timed choices of product algorithms are kept; "": nowhere
  bool gemm_search = true;
  // kCuda: a row of a product of one shape has the same bits wherever it stands and whatever stands beside it, in every
  // run: a fixed choice of algorithms that split no sums, without file and search.
  bool gemm_uniform_rows = false;
  // kCuda: what the library's products overwrite is cleared first (compute-sanitizer's initcheck does not see their stores).
  bool gemm_clear_outputs = false;
  DeviceKind planned = DeviceKind::kCpu;  // kPlan: the backend whose saved and scratch sizes count
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device& device() = 0;
  virtual const ops::OpTable& table() const = 0;
  // Differs between two cards of a host; empty where any number of ranks may share the device.
  virtual std::string device_identity() const { return ""; }
  // Between the devices of several ranks; collective. `nvls`: NVLink multicast may be used. Here: of
  // devices whose memory is the host's.
  virtual std::unique_ptr<dist::Collectives> make_collectives(dist::Communicator& ranks,
                                                              [[maybe_unused]] bool nvls) {
    return dist::make_host_collectives(ranks);
  }

  // Takes the algorithms of products that another rank chose: a file of BackendOptions::gemm_file, as
  // text. Those chosen here before stay.
  virtual void adopt_products([[maybe_unused]] const std::string& choices) {}

  Context context(Arena& arena, DType activation_dtype) {
    return Context{&device(), &table(), &arena, activation_dtype};
  }
};

// Throws DeviceError when this build has no such backend, the machine no such device, or a driver
// that is too old.
//
// kPlan: nothing is computed and no memory is taken. Run a step with context(arena, dtype) of an
// Arena in its planning form: every argument is checked, and the arena's peak is what the step
// needs on options.planned, whose device need not be there.
std::unique_ptr<Backend> make_backend(DeviceKind kind, const BackendOptions& options = {});

// "reference", "cpu", "cuda", "plan".
const char* device_kind_name(DeviceKind kind);
// ConfigError naming the kinds there are.
DeviceKind parse_device_kind(const std::string& name);

// Devices of a kind on this machine; 1 where the kind is not of that sort.
int num_devices(DeviceKind kind);

// Kinds of this build that can be made on this machine, kReference first.
std::vector<DeviceKind> available_backends();

}  // namespace deltatrain::backend
