// The five XLA FFI handlers of the CUDA platform.
//
// Each puts one use of its call site into XLA's stream and returns: nothing waits on the host, and what is put holds
// constants only, so XLA may trace the handler into a command buffer and replay that for ever. Replays call no
// handler: what fails in one is reported by the next handler call, by check() or by finalize.
//
// The operands domain and position stay in device memory: which rank this is follows from the device. Sites and staging are made in the initialize stage, which XLA runs before it
// captures anything.
#include <xla/ffi/api/ffi.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "client/c/mutex.h"
#include "client/cuda/open_stream_group.h"
#include "client/jax/epd_jax.h"
#include "client/jax/ffi_operations.h"
#include "client/program/device_groups.h"

namespace epd::jax {
namespace {

namespace ffi = ::xla::ffi;
using client::Status;
using program::DeviceGroups;
using program::DeviceSites;

// `rows`: the element type of what moves; any for prepare.
client::StreamCall MakeStreamCall(const SiteState& site, std::uint32_t rank, ffi::DataType rows) {
  const CallConfig& config = site.config;
  client::StreamCall call;
  call.kind = static_cast<shm::Kind>(config.operation);
  call.rank = rank;
  if (site.key.empty()) {
    call.program = site.executable->Seal();
    call.ordinal = site.ordinal;
    call.scope = config.scope;
  } else {
    call.name = site.key;
    call.program = client::DigestOf(site.key);
  }
  call.top_k = static_cast<std::uint32_t>(config.top_k);
  call.alignment = static_cast<std::uint32_t>(config.alignment);
  call.num_tokens = static_cast<std::uint64_t>(config.tokens);
  if (config.operation == Operation::kPrepare) return call;
  call.recv_capacity = static_cast<std::uint64_t>(config.sizes.recv_capacity);
  call.dtype = static_cast<std::uint32_t>(ToDtype(rows));
  call.row_bytes = static_cast<std::uint64_t>(config.width) * ffi::ByteWidth(rows);
  call.has_weights =
      config.operation == Operation::kDispatch || config.operation == Operation::kDispatchBackward;
  return call;
}

// Where one call of a site goes.
struct Target {
  std::shared_ptr<client::StreamGroup> group;
  client::HeldSite* site = nullptr;
};

// Those of a call site, which every call of it finds.
DeviceSites& FindSites(SiteState& site) {
  static client::Mutex mutex;
  const client::MutexLock lock(mutex);
  if (site.devices == nullptr) site.devices = std::make_shared<DeviceSites>();
  return *site.devices;
}

Status Resolve(SiteState* site, int device, ffi::DataType rows, Target* target) {
  const epd_program_call call = MakeCall(*site, 0, 0, 0);  // The device says which rank it is.
  Status status = DeviceGroups::Shared().Find(call, device, &target->group);
  if (!status.ok()) return status;
  return FindSites(*site).Get(target->group, device,
                              MakeStreamCall(*site, target->group->rank(), rows), &target->site);
}

std::atomic<std::uint64_t> num_calls = 0;

ffi::Error Put(SiteState* site, void* stream, std::int32_t device, ffi::DataType rows,
               const client::StreamBuffers& buffers) {
  num_calls.fetch_add(1, std::memory_order_relaxed);
  Status status;
  do {  // Again where the group has ended with a daemon that stopped in order: it is then joined again.
    Target target;
    status = Resolve(site, device, rows, &target);
    if (!status.ok()) break;
    status = target.group->Put(*target.site, buffers, reinterpret_cast<cuda::Stream>(stream));
  } while (status.resumable);
  return ToXla(status, site->config);
}

// XLA hands every operand and result of a call over as an argument.
// NOLINTBEGIN(readability-function-size)
ffi::Error Prepare(SiteState* site, void* stream, std::int32_t device, Scalar, Scalar,
                   ffi::AnyBuffer topk_idx, ffi::RemainingArgs,
                   ffi::ResultBuffer<ffi::S32> token_counts, ffi::ResultBuffer<ffi::S32> total_recv,
                   ffi::ResultBuffer<ffi::U8> handle_mem, ffi::Dictionary) {
  client::StreamBuffers buffers;
  buffers.topk_idx = topk_idx.untyped_data();
  buffers.idx_bytes = topk_idx.element_type() == ffi::DataType::S64 ? 8 : 4;
  buffers.token_counts = token_counts->typed_data();
  buffers.num_token_counts = token_counts->element_count();
  buffers.total_recv = total_recv->typed_data();
  buffers.handle_mem = handle_mem->typed_data();
  return Put(site, stream, device, ffi::DataType::S32, buffers);
}

client::StreamBuffers RowBuffers(HandleMem handle_mem, ffi::AnyBuffer rows, const float* weights,
                                 ffi::Result<ffi::AnyBuffer> out_rows, float* out_weights) {
  client::StreamBuffers buffers;
  buffers.handle_mem = handle_mem.untyped_data();
  buffers.rows = rows.untyped_data();
  buffers.weights = weights;
  buffers.out_rows = out_rows->untyped_data();
  buffers.out_weights = out_weights;
  return buffers;
}

// Dispatch and its backward.
ffi::Error WithWeights(SiteState* site, void* stream, std::int32_t device, Scalar, Scalar,
                       HandleMem handle_mem, ffi::AnyBuffer rows, Weights weights,
                       ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> out_rows,
                       ffi::ResultBuffer<ffi::F32> out_weights, ffi::Dictionary) {
  return Put(
      site, stream, device, rows.element_type(),
      RowBuffers(handle_mem, rows, weights.typed_data(), out_rows, out_weights->typed_data()));
}

// Combine and its backward.
ffi::Error WithoutWeights(SiteState* site, void* stream, std::int32_t device, Scalar, Scalar,
                          HandleMem handle_mem, ffi::AnyBuffer rows, ffi::RemainingArgs,
                          ffi::Result<ffi::AnyBuffer> out_rows, ffi::Dictionary) {
  return Put(site, stream, device, rows.element_type(),
             RowBuffers(handle_mem, rows, nullptr, out_rows, nullptr));
}
// NOLINTEND(readability-function-size)

// Of a call with rows: they are operand 3, of prepare that is none.
ffi::Error Initialize(SiteState* site, std::int32_t device, ffi::RemainingArgs args,
                      ffi::RemainingRets, ffi::Dictionary) {
  ffi::DataType rows = ffi::DataType::S32;
  if (site->config.operation != Operation::kPrepare) {
    const auto operand = args.get<ffi::AnyBuffer>(3);
    if (!operand.has_value()) return operand.error();
    rows = operand->element_type();
  }
  Target target;
  return ToXla(Resolve(site, device, rows, &target), site->config);
}

// What every handler is called with before its operands.
auto BindCall() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<SiteState>>()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<Scalar>()
      .Arg<Scalar>();
}

}  // namespace

// Two sets: XLA takes the first into its command buffers, where it takes them at all, and calls the second at every execution.
#define EPD_JAX_HANDLERS(prefix, ...)                                                           \
  EPD_JAX_HANDLER(prefix##prepare, Prepare, BindPrepare(BindCall()), __VA_ARGS__);              \
  EPD_JAX_HANDLER(prefix##dispatch, WithWeights, BindRowsWithWeights(BindCall()), __VA_ARGS__); \
  EPD_JAX_HANDLER(prefix##combine, WithoutWeights, BindRows(BindCall()), __VA_ARGS__);          \
  EPD_JAX_HANDLER(prefix##dispatch_bwd, WithWeights, BindRowsWithWeights(BindCall()),           \
                  __VA_ARGS__);                                                                 \
  EPD_JAX_HANDLER(prefix##combine_bwd, WithoutWeights, BindRows(BindCall()), __VA_ARGS__)
EPD_JAX_HANDLERS(epd_jax_cuda_, {ffi::Traits::kCmdBufferCompatible});
EPD_JAX_HANDLERS(epd_jax_cuda_called_, {});
#undef EPD_JAX_HANDLERS

// One for all five.
EPD_JAX_HANDLER(epd_jax_cuda_initialize, Initialize,
                ffi::Ffi::BindInitialize()
                    .Ctx<ffi::State<SiteState>>()
                    .Ctx<ffi::DeviceOrdinal>()
                    .RemainingArgs()
                    .RemainingRets()
                    .Attrs());

}  // namespace epd::jax

size_t epd_jax_cuda_problem(char* text, size_t text_bytes) {
  const std::string& problem = epd::client::ProcessDriver().problem;
  if (text_bytes > 0) std::snprintf(text, text_bytes, "%s", problem.c_str());
  return problem.size();
}

int epd_jax_cuda_check(const char* alias, epd_error* error) {
  const epd::client::Status status = epd::program::DeviceGroups::Shared().Check(alias);
  error->code = static_cast<int32_t>(status.code);
  std::snprintf(error->message, sizeof error->message, "%s", status.message.c_str());
  return error->code;
}

uint64_t epd_jax_cuda_calls() { return epd::jax::num_calls; }

void epd_jax_cuda_finalize(const char* alias) {
  epd::program::DeviceGroups::Shared().Finalize(alias);
}
