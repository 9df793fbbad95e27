#include "tests/unit/client/jax/five_sites.h"

#include <utility>

#include "client/jax/call_site.h"

#define EPD_TEST_HANDLERS(operation)                                               \
  extern "C" XLA_FFI_Error* epd_jax_##operation##_instantiate(XLA_FFI_CallFrame*); \
  extern "C" XLA_FFI_Error* epd_jax_cuda_##operation(XLA_FFI_CallFrame*)
EPD_TEST_HANDLERS(prepare);
EPD_TEST_HANDLERS(dispatch);
EPD_TEST_HANDLERS(combine);
EPD_TEST_HANDLERS(dispatch_bwd);
EPD_TEST_HANDLERS(combine_bwd);
extern "C" XLA_FFI_Error* epd_jax_cuda_initialize(XLA_FFI_CallFrame*);

namespace epd::jax {
namespace {

std::unique_ptr<FakeSite> NewSite(const SiteSizes& sizes, Handler* instantiate, Handler* execute) {
  auto site =
      std::make_unique<FakeSite>(instantiate, &epd_jax_cuda_initialize, execute, sizes.runtime);
  site->Attribute("alias", "default");
  site->Attribute("name", "");
  site->Attribute("program", "jit_step");
  site->Attribute("scope", sizes.scope);
  const std::pair<const char*, int64_t> numbers[] = {{"by_rank", 0},
                                                     {"ranks", sizes.ranks},
                                                     {"experts", sizes.experts},
                                                     {"local_experts", sizes.local_experts},
                                                     {"owners", 0},
                                                     {"max_tokens", sizes.max_tokens},
                                                     {"top_k", sizes.top_k},
                                                     {"alignment", sizes.alignment},
                                                     {"hidden", sizes.hidden},
                                                     {"width", sizes.hidden},
                                                     {"tokens", sizes.tokens},
                                                     {"shards", 1},
                                                     {"capacity", sizes.capacity}};
  for (const auto& [name, value] : numbers) site->Attribute(name, value);
  // Of device memory, where nobody on the host may read: domain and position.
  for (int i = 0; i < 2; ++i) site->Operand(XLA_FFI_DataType_S32, nullptr, {});
  return site;
}

struct Tensor {
  float* data = nullptr;
  std::vector<int64_t> dims = {};
};

struct RowTensors {
  Tensor in;
  Tensor out;
  Tensor in_weights = {};
  Tensor out_weights = {};
};

void AddRows(FakeSite& site, const SiteSizes& sizes, uint8_t* plan, const RowTensors& rows) {
  site.Operand(XLA_FFI_DataType_U8, plan, {sizes.plan_bytes});
  site.Operand(XLA_FFI_DataType_F32, rows.in.data, rows.in.dims);
  site.Result(XLA_FFI_DataType_F32, rows.out.data, rows.out.dims);
  if (rows.in_weights.data == nullptr) return;
  site.Operand(XLA_FFI_DataType_F32, rows.in_weights.data, rows.in_weights.dims);
  site.Result(XLA_FFI_DataType_F32, rows.out_weights.data, rows.out_weights.dims);
}

}  // namespace

std::vector<std::unique_ptr<FakeSite>> FiveSites(const SiteSizes& s, const SiteBuffers& b) {
  std::vector<std::unique_ptr<FakeSite>> sites;
  const auto add = [&](Handler* instantiate, Handler* execute) -> FakeSite& {
    sites.push_back(NewSite(s, instantiate, execute));
    return *sites.back();
  };
  const auto of_tokens = [&](float* data) { return Tensor{data, {s.tokens, s.hidden}}; };
  const auto of_slots = [&](float* data) { return Tensor{data, {s.capacity, s.hidden}}; };
  const auto per_route = [&](float* data) { return Tensor{data, {s.tokens, s.top_k}}; };
  const auto per_slot = [&](float* data) { return Tensor{data, {s.capacity}}; };

  FakeSite& prepare = add(&epd_jax_prepare_instantiate, &epd_jax_cuda_prepare);
  prepare.Operand(XLA_FFI_DataType_S32, b.topk, {s.tokens, s.top_k});
  prepare.Result(XLA_FFI_DataType_S32, b.counts, {s.local_experts});
  prepare.Result(XLA_FFI_DataType_S32, b.total, {1});
  prepare.Result(XLA_FFI_DataType_U8, b.plan, {s.plan_bytes});
  AddRows(add(&epd_jax_dispatch_instantiate, &epd_jax_cuda_dispatch), s, b.plan,
          {of_tokens(b.tokens), of_slots(b.recv), per_route(b.weights), per_slot(b.recv_weights)});
  AddRows(add(&epd_jax_combine_instantiate, &epd_jax_cuda_combine), s, b.plan,
          {of_slots(b.expert_out), of_tokens(b.combined)});
  AddRows(add(&epd_jax_dispatch_bwd_instantiate, &epd_jax_cuda_dispatch_bwd), s, b.plan,
          {of_slots(b.expert_out), of_tokens(b.grad_tokens), per_slot(b.expert_weights),
           per_route(b.grad_weights)});
  AddRows(add(&epd_jax_combine_bwd_instantiate, &epd_jax_cuda_combine_bwd), s, b.plan,
          {of_tokens(b.cotangents), of_slots(b.grad_expert)});
  return sites;
}

Outcome Load(std::vector<std::unique_ptr<FakeSite>>& sites, int device) {
  EndCompile();
  for (auto& site : sites) {
    if (Outcome outcome = site->Instantiate(); !outcome.ok()) return outcome;
    if (Outcome outcome = site->Initialize(device); !outcome.ok()) return outcome;
  }
  return {};
}

Outcome Execute(std::vector<std::unique_ptr<FakeSite>>& sites, int device, void* stream) {
  for (auto& site : sites) {
    if (Outcome outcome = site->Execute(device, stream); !outcome.ok()) return outcome;
  }
  return {};
}

}  // namespace epd::jax
