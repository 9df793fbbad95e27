// The five XLA FFI handlers of the CPU platform.
//
// Asynchronous: XLA gets a future at once; a thread of its own makes the call, which may wait for
// other ranks, and completes the future. XLA keeps operands and results
// alive until then. Were the calls made on XLA's own threads, two independent ones that two ranks
// start in different order would wait for each other for ever. A program with a single call cannot
// do that, and makes it at once: handing over to another thread costs as much as exchanging a few
// rows.
//
// Calls have the side effect flag only where _kept_call.py says why: it orders nothing, and it would
// defeat rematerialisation.
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "client/jax/call_site.h"
#include "client/jax/ffi_operations.h"
#include "client/jax/ffi_site.h"
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

  void Run() {
    epd_error error = {};
    error.struct_size = sizeof error;
    const epd_program_call call = MakeCall(site, run_id, place.domain, place.position);
    if (const int code = function(&call, &args, &error); code != EPD_OK) {
      promise.SetError(ToXla({client::CodeFromNumber(code), error.message}));
    } else {
      promise.SetAvailable();  // Runs what follows in the program, here.
    }
  }
};

template <typename Args>
ffi::Future Launch(Function<Args> function, const SiteState* site, ffi::RunId run, Place place,
                   Args args) {
  args.struct_size = sizeof args;
  ffi::Promise promise;
  ffi::Future future(promise);
  auto launched = std::make_unique<Launched<Args>>(
      Launched<Args>{*site, run.run_id, place, function, args, promise});
  if (site->executable->HasOneCall()) {
    launched->Run();
    return future;
  }
  const auto work = [](void* context) {
    const std::unique_ptr<Launched<Args>> own(static_cast<Launched<Args>*>(context));
    own->Run();
  };
  if (epd_program_start(work, launched.get(), nullptr) == EPD_OK) {
    static_cast<void>(launched.release());  // The thread has it.
  } else {
    promise.SetError(ToXla({client::Code::kResourceExhausted,
                            "[epd:RESOURCE_EXHAUSTED] group=" + site->config.alias + " rank=" +
                                std::to_string(place.position) + " phase=begin: no thread for " +
                                OperationName(site->config.operation) +
                                ": the limit of threads of this process or user is reached"}));
  }
  return future;
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
  return Launch(epd_program_prepare, site, run, place, args);
}

// What all calls that move rows say: the plan, and the sizes of the call site.
template <typename Args>
Args RowsArgs(const CallConfig& config, HandleMem handle_mem, ffi::DataType dtype) {
  Args args = {};
  args.handle_mem = handle_mem.untyped_data();
  args.handle_mem_bytes = handle_mem.element_count();
  args.top_k = static_cast<std::uint32_t>(config.top_k);
  args.alignment = static_cast<std::uint32_t>(config.alignment);
  args.dtype = ToDtype(dtype);
  args.hidden = static_cast<std::uint32_t>(config.width);
  args.num_tokens = static_cast<std::uint64_t>(config.tokens);
  args.recv_capacity = static_cast<std::uint64_t>(config.sizes.recv_capacity);
  return args;
}

// Dispatch and combine backward. `weights` and `recv_weights` are null in the latter.
ffi::Future Scatter(Function<epd_scatter_args> function, SiteState* site, ffi::RunId run,
                    Place place, HandleMem handle_mem, ffi::AnyBuffer tokens, const float* weights,
                    ffi::Result<ffi::AnyBuffer> recv_tokens, float* recv_weights) {
  auto args = RowsArgs<epd_scatter_args>(site->config, handle_mem, tokens.element_type());
  args.tokens = tokens.untyped_data();
  args.topk_weights = weights;
  args.recv_tokens = recv_tokens->untyped_data();
  PrepareOutput(args.recv_tokens, recv_tokens->size_bytes());
  args.recv_topk_weights = recv_weights;
  return Launch(function, site, run, place, args);
}

ffi::Future Dispatch(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                     HandleMem handle_mem, ffi::AnyBuffer tokens, Weights weights,
                     ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> recv_tokens,
                     ffi::ResultBuffer<ffi::F32> recv_weights, ffi::Dictionary) {
  return Scatter(epd_program_dispatch, site, run, ReadPlace(domain, rank), handle_mem, tokens,
                 weights.typed_data(), recv_tokens, recv_weights->typed_data());
}

ffi::Future CombineBackward(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                            HandleMem handle_mem, ffi::AnyBuffer grad, ffi::RemainingArgs,
                            ffi::Result<ffi::AnyBuffer> grad_expert_out, ffi::Dictionary) {
  return Scatter(epd_program_combine_backward, site, run, ReadPlace(domain, rank), handle_mem, grad,
                 nullptr, grad_expert_out, nullptr);
}

// Combine and dispatch backward. `recv_weights` and `weights` are null in the former.
ffi::Future Gather(Function<epd_gather_args> function, SiteState* site, ffi::RunId run, Place place,
                   HandleMem handle_mem, ffi::AnyBuffer expert_rows, const float* recv_weights,
                   ffi::Result<ffi::AnyBuffer> tokens, float* weights) {
  auto args = RowsArgs<epd_gather_args>(site->config, handle_mem, expert_rows.element_type());
  args.expert_rows = expert_rows.untyped_data();
  args.recv_topk_weights = recv_weights;
  args.tokens = tokens->untyped_data();
  PrepareOutput(args.tokens, tokens->size_bytes());
  args.topk_weights = weights;
  return Launch(function, site, run, place, args);
}

ffi::Future Combine(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                    HandleMem handle_mem, ffi::AnyBuffer expert_out, ffi::RemainingArgs,
                    ffi::Result<ffi::AnyBuffer> tokens, ffi::Dictionary) {
  return Gather(epd_program_combine, site, run, ReadPlace(domain, rank), handle_mem, expert_out,
                nullptr, tokens, nullptr);
}

ffi::Future DispatchBackward(SiteState* site, ffi::RunId run, Scalar domain, Scalar rank,
                             HandleMem handle_mem, ffi::AnyBuffer grad, Weights grad_weights,
                             ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> grad_tokens,
                             ffi::ResultBuffer<ffi::F32> grad_topk_weights, ffi::Dictionary) {
  return Gather(epd_program_dispatch_backward, site, run, ReadPlace(domain, rank), handle_mem, grad,
                grad_weights.typed_data(), grad_tokens, grad_topk_weights->typed_data());
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(epd_jax_prepare, Prepare, BindPrepare(BindCall()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(epd_jax_dispatch, Dispatch, BindRowsWithWeights(BindCall()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(epd_jax_combine, Combine, BindRows(BindCall()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(epd_jax_dispatch_bwd, DispatchBackward,
                              BindRowsWithWeights(BindCall()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(epd_jax_combine_bwd, CombineBackward, BindRows(BindCall()));

}  // namespace epd::jax
