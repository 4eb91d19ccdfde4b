// A backend that computes nothing: a step run on it tells what the step needs.
#include <atomic>

#include "backend/factories.h"

namespace deltatrain::backend {

namespace {

// Hands out addresses of a range that no program maps, each block its own.
class PlannedMemory final : public MemoryResource {
 public:
  void* allocate(size_t bytes) override {
    const uint64_t padded = (static_cast<uint64_t>(bytes) / kAlignment + 1) * kAlignment;
    return reinterpret_cast<void*>(next_.fetch_add(padded));
  }
  void release(void*, size_t) noexcept override {}

 private:
  static constexpr uint64_t kAlignment = 256;
  std::atomic<uint64_t> next_{uint64_t{1} << 61};
};

class PlannedDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kPlan; }
  MemoryResource& memory() override { return memory_; }
  void copy_to_device(void*, const void*, size_t) override {}
  void copy_to_host(void*, const void*, size_t) override {}
  void copy_on_device(void*, const void*, size_t) override {}
  void fill_zero(void*, size_t) override {}
  void synchronize() override {}
  int64_t free_memory_bytes() override { return int64_t{1} << 62; }
  const char* description() const override { return "plan: sizes only"; }

 private:
  PlannedMemory memory_;
};

template <class Args>
void do_nothing(const Context&, const Args&) {}

// A function that takes scratch stays; one that the backend has but that takes none does nothing;
// one that the backend lacks stays empty.
template <class Args>
void plan(void (*&slot)(const Context&, const Args&),
          void (*planning)(const Context&, const Args&)) {
  if (planning != nullptr) {
    slot = planning;
  } else if (slot != nullptr) {
    slot = do_nothing<Args>;
  }
}

ops::OpTable plan_table(const BackendTables& planned) {
  ops::OpTable t = planned.table;
  const ops::OpTable& p = planned.planning;
  plan(t.linear.forward, p.linear.forward);
  plan(t.linear.backward, p.linear.backward);
  plan(t.embedding.forward, p.embedding.forward);
  plan(t.embedding.backward, p.embedding.backward);
  plan(t.rms_norm.forward, p.rms_norm.forward);
  plan(t.rms_norm.backward, p.rms_norm.backward);
  plan(t.gated_rms_norm.forward, p.gated_rms_norm.forward);
  plan(t.gated_rms_norm.backward, p.gated_rms_norm.backward);
  plan(t.short_conv.forward, p.short_conv.forward);
  plan(t.short_conv.backward, p.short_conv.backward);
  plan(t.short_conv_norm.forward, p.short_conv_norm.forward);
  plan(t.short_conv_norm.backward, p.short_conv_norm.backward);
  plan(t.l2_norm.forward, p.l2_norm.forward);
  plan(t.l2_norm.backward, p.l2_norm.backward);
  plan(t.delta_gate.forward, p.delta_gate.forward);
  plan(t.delta_gate.backward, p.delta_gate.backward);
  plan(t.delta_step.apply, p.delta_step.apply);
  plan(t.gated_delta_rule.forward, p.gated_delta_rule.forward);
  plan(t.gated_delta_rule.backward, p.gated_delta_rule.backward);
  plan(t.rotary.apply, p.rotary.apply);
  plan(t.causal_attention.forward, p.causal_attention.forward);
  plan(t.causal_attention.backward, p.causal_attention.backward);
  plan(t.mla_key.forward, p.mla_key.forward);
  plan(t.mla_key.backward, p.mla_key.backward);
  plan(t.swiglu.forward, p.swiglu.forward);
  plan(t.swiglu.backward, p.swiglu.backward);
  plan(t.cross_entropy.apply, p.cross_entropy.apply);
  plan(t.adamw.sum_of_squares, p.adamw.sum_of_squares);
  plan(t.adamw.finish_gradient_norm, p.adamw.finish_gradient_norm);
  plan(t.adamw.adamw, p.adamw.adamw);
  plan(t.elementwise.add, p.elementwise.add);
  plan(t.elementwise.convert, p.elementwise.convert);
  plan(t.elementwise.sum_to, p.elementwise.sum_to);
  plan(t.elementwise.row_argmax, p.elementwise.row_argmax);
  plan(t.elementwise.checksum, p.elementwise.checksum);
  plan(t.elementwise.copy_rows, p.elementwise.copy_rows);
  plan(t.token_scores.apply, p.token_scores.apply);
  plan(t.token_choices.apply, p.token_choices.apply);
  // The compositions take the most.
  t.norm_linear.apply = nullptr;
  t.linear_swiglu = {};
  return t;
}

class PlanBackend final : public Backend {
 public:
  explicit PlanBackend(const BackendTables& planned) : table_(plan_table(planned)) {}
  Device& device() override { return device_; }
  const ops::OpTable& table() const override { return table_; }

 private:
  PlannedDevice device_;
  ops::OpTable table_;
};

}  // namespace

std::unique_ptr<Backend> make_plan_backend(const BackendTables& planned) {
  return std::make_unique<PlanBackend>(planned);
}

}  // namespace deltatrain::backend
