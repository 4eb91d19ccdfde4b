// The equations of ops/reference on the host, in f64 or f32:
// what every other backend is measured against.
#include "backend/factories.h"
#include "backend/reference/reference_tables.h"
#include "device/host_device.h"

namespace deltatrain::backend {

namespace {

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend()
      : device_(DeviceKind::kReference, "reference: plain loops, one thread"),
        table_(reference_tables().table) {}
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
  fill_reference_dense_ops(tables.table);
  fill_reference_delta_ops(tables.table);
  fill_reference_update_ops(tables.table);
  tables.planning.gated_delta_rule.saved_bytes = tables.table.gated_delta_rule.saved_bytes;
  return tables;
}

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace deltatrain::backend
