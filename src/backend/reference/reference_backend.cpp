// The equations of ops/reference on the host, in f64 or f32: what every other backend is measured against.
#include "backend/factories.h"
#include "device/host_device.h"

namespace deltatrain::backend {

namespace {

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend()
      : device_(DeviceKind::kReference, "reference: plain loops, one thread"), table_(reference_tables().table) {}
  Device& device() override { return device_; }
  const ops::OpTable& table() const override { return table_; }

 private:
  HostDevice device_;
  ops::OpTable table_;
};

}  // namespace

BackendTables reference_tables() {
  BackendTables tables;
  tables.table.backend = "reference";
  return tables;
}

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace deltatrain::backend
