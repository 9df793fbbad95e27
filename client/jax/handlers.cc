// The XLA FFI handlers of the CPU platform.
//
// Asynchronous: XLA gets a future. Its own thread makes the call if the other ranks come within a moment; else another one waits
// for them, and completes the future. XLA keeps operands and results alive until then.
//
// Calls have the side effect flag only where _kept_call.py says why: it orders nothing, and it would
// defeat rematerialisation.
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/jax/call_site.h"
#include "client/jax/epd_jax.h"
#include "client/jax/ffi_operations.h"
#include "client/jax/row_arguments.h"
#include "client/program/epd_program.h"
#include "kernels/prepare_output.h"

namespace epd::jax {
namespace {

namespace ffi = ::xla::ffi;

// Where a call runs.
struct Place {
  std::int32_t domain;
  std::int32_t position;
};

Place ReadPlace(Scalar domain, Scalar position) {
  return {*domain.typed_data(), *position.typed_data()};
}

// One of the operations of epd_program.h.
template <typename Args>
using Function = int (*)(const epd_program_call*, const Args*, epd_error*);

// A call on its way, with all that it needs: the executable may be dropped while its last execution
// is under way.
template <typename Args>
struct Launched {
  CallSite site;
  std::int64_t run_id;
  Place place;
  Function<Args> function;
  Args args;
  ffi::Promise promise;
  std::vector<epd_more_rows> more;  // What args point to.

  epd_program_pending* pending = nullptr;

  // False: it still waits for other ranks after `wait`. XLA's thread may not: two independent calls that two ranks start in
  // different order would wait for each other.
  bool Begin(std::chrono::nanoseconds wait) {
    epd_error error = {};
    error.struct_size = sizeof error;
    epd_program_call call = MakeCall(site, run_id, place.domain, place.position);
    // A program with a single call has no other one to wait for.
    if (!site.executable->HasOneCall()) call.pending = &pending;
    call.wait_ns = wait.count();
    const int code = function(&call, &args, &error);
    if (code == EPD_PENDING) return false;
    End(code, error);
    return true;
  }

  void Finish() {
    epd_error error = {};
    error.struct_size = sizeof error;
    const int code = epd_program_finish(pending, &error);
    End(code, error);
  }

  void FailAs(int code, const epd_error& error) {
    client::Status status = {client::CodeFromNumber(code), {}};
    try {
      status = InWords({status.code, error.message}, site.config);
    } catch (const std::bad_alloc&) {  // The code alone says it.
    }
    Fail(promise, status);
  }

  void End(int code, const epd_error& error) {
    if (code != EPD_OK) {
      FailAs(code, error);
    } else {
      promise.SetAvailable();  // Runs what follows in the program, here.
    }
  }
};

// How long XLA's thread waits for other ranks before it hands a call that moves so many bytes over to another thread, which
// takes longer than to exchange a few rows (tests/bench/README.md, payload.py).
std::chrono::nanoseconds MomentFor(std::size_t bytes) {
  constexpr std::size_t kFew = std::size_t{1} << 20;
  return std::chrono::microseconds(bytes <= kFew ? 300 : 0);
}

// Which call of which execution.
struct Use {
  const SiteState* site;
  ffi::RunId run;
  Place place;
};

// `bytes`: of the rows that this rank gives.
template <typename Args>
ffi::Future Launch(Function<Args> function, const Use& use, Args args, std::size_t bytes,
                   std::vector<epd_more_rows> more = {}) {
  args.struct_size = sizeof args;
  std::unique_ptr<Launched<Args>> launched;
  std::optional<ffi::Future> future;
  try {
    ffi::Promise promise;
    future.emplace(promise);
    launched = std::make_unique<Launched<Args>>(Launched<Args>{
        *use.site, use.run.run_id, use.place, function, args, promise, std::move(more)});
  } catch (const std::bad_alloc&) {
    RefuseForMemory(MakeCall(*use.site, use.run.run_id, use.place.domain, use.place.position));
    throw;
  }
  if (launched->Begin(MomentFor(bytes))) return *std::move(future);
  const auto work = [](void* context) {
    const std::unique_ptr<Launched<Args>> own(static_cast<Launched<Args>*>(context));
    own->Finish();
  };
  if (epd_program_start(work, launched.get(), nullptr) == EPD_OK) {
    static_cast<void>(launched.release());  // The thread has it.
  } else {
    launched->Finish();  // No thread is left: other ranks may have the call already.
  }
  return *std::move(future);
}

// XLA hands every operand and result of a call over as an argument.
// NOLINTBEGIN(readability-function-size)
ffi::Future Prepare(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                    ffi::AnyBuffer topk_idx, ffi::RemainingArgs,
                    ffi::ResultBuffer<ffi::S32> token_counts,
                    ffi::ResultBuffer<ffi::S32> total_recv, ffi::ResultBuffer<ffi::U8> handle_mem,
                    ffi::Dictionary) {
  const Place place = ReadPlace(domain, rank);
  epd_prepare_args args = {};
  args.topk_idx = topk_idx.untyped_data();
  args.idx_bytes = topk_idx.element_type() == ffi::DataType::S64 ? 8 : 4;
  args.num_tokens = static_cast<std::uint64_t>(site->config.tokens);
  args.top_k = static_cast<std::uint32_t>(site->config.top_k);
  args.alignment = static_cast<std::uint32_t>(site->config.alignment);
  args.token_counts = token_counts->typed_data();
  // A rank may own fewer experts than there are entries, or none.
  std::fill_n(args.token_counts, token_counts->element_count(), 0);
  args.total_recv = total_recv->typed_data();
  args.handle_mem = handle_mem->typed_data();
  args.handle_mem_bytes = handle_mem->element_count();
  return Launch(epd_program_prepare, {site, run, place}, args, topk_idx.size_bytes());
}

template <typename Args>
ffi::Future MoveRows(Function<Args> function, SiteState* site, ffi::RunId run, Place place,
                     HandleMem handle_mem, ffi::AnyBuffer rows, const float* weights,
                     ffi::Result<ffi::AnyBuffer> out_rows, float* out_weights) {
  const Args args =
      MakeRowArguments<Args>(site->config, {.handle_mem = handle_mem.untyped_data(),
                                            .handle_mem_bytes = handle_mem.element_count(),
                                            .dtype = ToDtype(rows.element_type()),
                                            .rows = rows.untyped_data(),
                                            .weights = weights,
                                            .out_rows = out_rows->untyped_data(),
                                            .out_weights = out_weights});
  PrepareOutput(out_rows->untyped_data(), out_rows->size_bytes());
  return Launch(function, {site, run, place}, args, rows.size_bytes());
}

template <auto function>
ffi::Future WithWeights(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                        HandleMem handle_mem, ffi::AnyBuffer rows, Weights weights,
                        ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> out_rows,
                        ffi::ResultBuffer<ffi::F32> out_weights, ffi::Dictionary) {
  return MoveRows(function, site, run, ReadPlace(domain, rank), handle_mem, rows,
                  weights.typed_data(), out_rows, out_weights->typed_data());
}

template <auto function>
ffi::Future WithoutWeights(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                           HandleMem handle_mem, ffi::AnyBuffer rows, ffi::RemainingArgs,
                           ffi::Result<ffi::AnyBuffer> out_rows, ffi::Dictionary) {
  return MoveRows(function, site, run, ReadPlace(domain, rank), handle_mem, rows, nullptr, out_rows,
                  nullptr);
}

std::uint32_t WidthOf(const ffi::AnyBuffer& array) {
  return static_cast<std::uint32_t>(array.dimensions().back());
}

// Each array of a payload and where its rows go. Of the operands there may be one more, which nobody reads.
ffi::ErrorOr<std::vector<epd_more_rows>> ReadPayload(const ffi::RemainingArgs& arrays,
                                                     const ffi::RemainingRets& out_arrays) {
  std::vector<epd_more_rows> payload;
  for (std::size_t i = 0; i < out_arrays.size(); ++i) {
    const auto in = arrays.get<ffi::AnyBuffer>(i);
    auto out = out_arrays.get<ffi::AnyBuffer>(i);
    if (in.has_error()) return ffi::Unexpected(in.error());
    if (out.has_error()) return ffi::Unexpected(out.error());
    payload.push_back(
        {ToDtype(in->element_type()), WidthOf(*in), in->untyped_data(), (*out)->untyped_data()});
    PrepareOutput((*out)->untyped_data(), (*out)->size_bytes());
  }
  if (!payload.empty()) return payload;
  return ffi::Unexpected(ffi::Error::InvalidArgument("a payload without arrays"));
}

ffi::Future DispatchPayload(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                            HandleMem handle_mem, Weights weights, ffi::RemainingArgs arrays,
                            ffi::ResultBuffer<ffi::F32> out_weights, ffi::RemainingRets out_arrays,
                            ffi::Dictionary) {
  auto payload = ReadPayload(arrays, out_arrays);
  if (payload.has_error()) {
    ffi::Promise promise;
    ffi::Future failed(promise);
    promise.SetError(payload.error());
    return failed;
  }
  const epd_more_rows first = payload->front();
  std::vector<epd_more_rows> more(payload->begin() + 1, payload->end());
  auto args = MakeRowArguments<epd_scatter_args>(site->config,
                                                 {.handle_mem = handle_mem.untyped_data(),
                                                  .handle_mem_bytes = handle_mem.element_count(),
                                                  .dtype = first.dtype,
                                                  .rows = first.tokens,
                                                  .weights = weights.typed_data(),
                                                  .out_rows = first.recv_tokens,
                                                  .out_weights = out_weights->typed_data()});
  args.hidden = first.hidden;
  args.more = more.data();
  args.num_more = static_cast<std::uint32_t>(more.size());
  const auto bytes = static_cast<std::size_t>(site->config.tokens * site->config.width);
  return Launch(epd_program_dispatch, {site, run, ReadPlace(domain, rank)}, args, bytes,
                std::move(more));
}

std::uint64_t RowsOf(const ffi::AnyBuffer& array) {
  return static_cast<std::uint64_t>(array.dimensions()[0]);
}

ffi::Future RaggedAllToAll(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                           ffi::AnyBuffer operand, ffi::AnyBuffer output,
                           ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes,
                           ffi::AnyBuffer output_offsets, ffi::AnyBuffer recv_sizes,
                           ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> landing_offsets,
                           ffi::Result<ffi::AnyBuffer> source_offsets,
                           ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  epd_ragged_args args = {};
  args.dtype = ToDtype(operand.element_type());
  const auto sizes = operand.dimensions();
  args.row_bytes = std::accumulate(sizes.begin() + 1, sizes.end(),
                                   std::uint64_t{ffi::ByteWidth(operand.element_type())},
                                   [](std::uint64_t bytes, std::int64_t size) {
                                     return bytes * static_cast<std::uint64_t>(size);
                                   });
  args.operand = operand.untyped_data();
  args.operand_rows = RowsOf(operand);
  args.output = output.untyped_data();
  args.output_rows = RowsOf(output);
  args.index_bytes = static_cast<std::uint32_t>(ffi::ByteWidth(send_sizes.element_type()));
  args.slices_per_rank = static_cast<std::uint32_t>(send_sizes.element_count()) /
                         static_cast<std::uint32_t>(site->config.sizes.ranks);
  args.input_offsets = input_offsets.untyped_data();
  args.send_sizes = send_sizes.untyped_data();
  args.output_offsets = output_offsets.untyped_data();
  args.recv_sizes = recv_sizes.untyped_data();
  args.result = result->untyped_data();
  args.adds = site->config.tokens != 0 ? 1 : 0;
  args.landing_offsets = landing_offsets->untyped_data();
  args.source_offsets = source_offsets->untyped_data();
  PrepareOutput(args.result, result->size_bytes());
  return Launch(epd_program_ragged_all_to_all, {site, run, ReadPlace(domain, rank)}, args,
                operand.size_bytes());
}
// NOLINTEND(readability-function-size)

// What every handler is called with before its operands.
auto BindCall() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<SiteState>>()
      .Ctx<ffi::RunId>()
      .Arg<Scalar>()
      .Arg<Scalar>();
}

}  // namespace

EPD_JAX_HANDLER(epd_jax_prepare, Prepare, BindPrepare(BindCall()));
EPD_JAX_HANDLER(epd_jax_dispatch, WithWeights<epd_program_dispatch>,
                BindRowsWithWeights(BindCall()));
EPD_JAX_HANDLER(epd_jax_dispatch_payload, DispatchPayload,
                BindCall()
                    .Arg<HandleMem>()
                    .Arg<Weights>()
                    .RemainingArgs()
                    .Ret<Weights>()
                    .RemainingRets()
                    .Attrs());
EPD_JAX_HANDLER(epd_jax_combine, WithoutWeights<epd_program_combine>, BindRows(BindCall()));
EPD_JAX_HANDLER(epd_jax_dispatch_bwd, WithWeights<epd_program_dispatch_backward>,
                BindRowsWithWeights(BindCall()));
EPD_JAX_HANDLER(epd_jax_combine_bwd, WithoutWeights<epd_program_combine_backward>,
                BindRows(BindCall()));
EPD_JAX_HANDLER(epd_jax_ragged, RaggedAllToAll,
                BindCall()
                    .Arg<ffi::AnyBuffer>()
                    .Arg<ffi::AnyBuffer>()
                    .Arg<ffi::AnyBuffer>()
                    .Arg<ffi::AnyBuffer>()
                    .Arg<ffi::AnyBuffer>()
                    .Arg<ffi::AnyBuffer>()
                    .RemainingArgs()
                    .Ret<ffi::AnyBuffer>()
                    .Ret<ffi::AnyBuffer>()
                    .Ret<ffi::AnyBuffer>()
                    .Attrs());

}  // namespace epd::jax

int epd_jax_ffi_api_major(void) { return XLA_FFI_API_MAJOR; }
int epd_jax_ffi_api_minor(void) { return XLA_FFI_API_MINOR; }

void epd_jax_end_compile(void) { epd::jax::EndCompile(); }

int epd_jax_is_named(const char* alias) { return epd::jax::IsNamed(alias) ? 1 : 0; }

void epd_jax_follow_compiles_process_wide(void) { epd::jax::FollowCompilesProcessWide(); }
