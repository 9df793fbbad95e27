// The XLA FFI handlers of calls in two halves (started_calls.h), on CPUs.
#include <xla/ffi/api/ffi.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "client/jax/call_site.h"
#include "client/jax/ffi_operations.h"
#include "client/jax/row_arguments.h"
#include "client/jax/started_calls.h"
#include "client/program/epd_program.h"

namespace epd::jax {
namespace {

namespace ffi = ::xla::ffi;

using Token = ffi::Buffer<ffi::F32>;

// A call on its way, with copies of all that it reads: XLA may use the memory of the operands once start has returned.
template <typename Args>
struct Half {
  CallSite site;
  std::int64_t run_id;
  std::int32_t domain;
  std::int32_t position;
  int (*function)(const epd_program_call*, const Args*, epd_error*);
  Bytes handle_mem;
  Bytes rows;
  Bytes weights;
  Args args;
  std::shared_ptr<StartedCall> started;
  std::shared_ptr<StartOrder> order;

  void Run() {
    epd_error error = {};
    error.struct_size = sizeof error;
    const epd_program_call call = MakeCall(site, run_id, domain, position);
    const int code = function(&call, &args, &error);
    if (code == EPD_OK) return End({});
    EndWith(client::CodeFromNumber(code), error.message);
  }

  // Instead of Run: the other ranks are told why, and wait for nobody.
  void RefuseForThread() {
    const epd_program_call call = MakeCall(site, run_id, domain, position);
    try {
      const client::Status cause = NoThread(site.config, position);
      epd_error error = {};
      error.struct_size = sizeof error;
      static_cast<void>(epd_program_refuse(&call, static_cast<std::int32_t>(cause.code),
                                           cause.message.c_str(), &error));
      EndWith(cause.code, cause.message.c_str());
    } catch (const std::bad_alloc&) {
      RefuseForMemory(call);
      End({client::Code::kResourceExhausted, {}});
    }
  }

  // Also where there is no memory for the words: the code alone says it then.
  void EndWith(client::Code code, const char* text) {
    client::Status status = {code, {}};
    try {
      status = InWords({code, text}, site.config);
    } catch (const std::bad_alloc&) {
    }
    End(std::move(status));
  }

  void End(client::Status status) {
    // First: what follows in the program runs in started->End, and may wait for the next one.
    order->IsOver({domain, position});
    started->End(std::move(status));
  }

  // On a thread of its own.
  static void Begin(std::shared_ptr<Half> half) {
    const auto work = [](void* context) {
      const std::unique_ptr<std::shared_ptr<Half>> own(
          static_cast<std::shared_ptr<Half>*>(context));
      (*own)->Run();
    };
    std::unique_ptr<std::shared_ptr<Half>> context(new (std::nothrow) std::shared_ptr<Half>(half));
    if (context != nullptr && epd_program_start(work, context.get(), nullptr) == EPD_OK) {
      static_cast<void>(context.release());  // The thread has it.
      return;
    }
    half->RefuseForThread();
  }
};

// Elements of the results' rows, and of their weights.
struct ResultSizes {
  std::size_t rows;
  std::size_t weights;
};
ResultSizes SizesOf(const CallConfig& config) {
  const auto tokens = static_cast<std::size_t>(config.tokens);
  const auto slots = static_cast<std::size_t>(config.sizes.recv_capacity);
  const auto width = static_cast<std::size_t>(config.width);
  const bool to_experts =
      config.operation == Operation::kDispatch || config.operation == Operation::kCombineBackward;
  if (to_experts) return {slots * width, slots};
  return {tokens * width, tokens * static_cast<std::size_t>(config.top_k)};
}

// NOLINTBEGIN(readability-function-size): XLA hands every operand and result of a call over as an argument.
template <typename Args>
ffi::Error Start(int (*function)(const epd_program_call*, const Args*, epd_error*),
                 const SiteState* site, ffi::RunId run, Scalar domain, Scalar position,
                 HandleMem handle_mem, ffi::AnyBuffer rows, const Weights* weights,
                 ffi::Result<Token> token) {
  const ResultSizes sizes = SizesOf(site->config);
  const std::size_t element = ffi::ByteWidth(rows.element_type());
  auto started = std::make_shared<StartedCall>(
      Bytes(sizes.rows * element),
      weights == nullptr ? Bytes() : Bytes(sizes.weights * sizeof(float)));
  auto half = std::make_shared<Half<Args>>(Half<Args>{
      .site = *site,
      .run_id = run.run_id,
      .domain = *domain.typed_data(),
      .position = *position.typed_data(),
      .function = function,
      .handle_mem = Bytes(handle_mem.untyped_data(), handle_mem.size_bytes()),
      .rows = Bytes(rows.untyped_data(), rows.size_bytes()),
      .weights =
          weights == nullptr ? Bytes() : Bytes(weights->untyped_data(), weights->size_bytes()),
      .args = {},
      .started = started,
      .order = site->starts});
  half->args = MakeRowArguments<Args>(
      site->config,
      {.handle_mem = half->handle_mem.data(),
       .handle_mem_bytes = half->handle_mem.size(),
       .dtype = ToDtype(rows.element_type()),
       .rows = half->rows.data(),
       .weights = weights == nullptr ? nullptr : static_cast<float*>(half->weights.data()),
       .out_rows = started->rows(),
       .out_weights = weights == nullptr ? nullptr : static_cast<float*>(started->weights())});
  PutNumber(StartedCalls::Shared().Add(started, std::chrono::steady_clock::now()),
            token->typed_data());
  // What begins it throws nothing. What throws before does not refuse it: an earlier use of the site may not have begun yet, whose
  // place that would take.
  site->starts->Add({half->domain, half->position}, [half] { Half<Args>::Begin(half); });
  return ffi::Error::Success();
}

template <auto function>
ffi::Error StartWithWeights(SiteState* site, ffi::RunId run, Scalar domain, Scalar position,
                            HandleMem handle_mem, ffi::AnyBuffer rows, Weights weights,
                            ffi::RemainingArgs, ffi::Result<Token> token, ffi::Dictionary) {
  return Start(function, site, run, domain, position, handle_mem, rows, &weights, token);
}

template <auto function>
ffi::Error StartWithoutWeights(SiteState* site, ffi::RunId run, Scalar domain, Scalar position,
                               HandleMem handle_mem, ffi::AnyBuffer rows, ffi::RemainingArgs,
                               ffi::Result<Token> token, ffi::Dictionary) {
  return Start(function, site, run, domain, position, handle_mem, rows,
               static_cast<const Weights*>(nullptr), token);
}
// NOLINTEND(readability-function-size)

ffi::Error NoSuchCall(const char* why) {
  return {ffi::ErrorCode::kInternal, std::string("[epd:INTERNAL] phase=done: ") + why +
                                         "; a started exchange is handed over once, within ten "
                                         "minutes, in the process that began it"};
}

// Where XLA wants a call's results.
struct Results {
  void* rows = nullptr;
  std::size_t rows_bytes = 0;
  void* weights = nullptr;
  std::size_t weights_bytes = 0;
};

Results WhereOf(const ffi::RemainingRets& results) {
  Results where;
  if (auto rows = results.get<ffi::AnyBuffer>(0); rows.has_value()) {
    where.rows = (*rows)->untyped_data();
    where.rows_bytes = (*rows)->size_bytes();
  }
  if (results.size() < 2) return where;
  if (auto weights = results.get<ffi::AnyBuffer>(1); weights.has_value()) {
    where.weights = (*weights)->untyped_data();
    where.weights_bytes = (*weights)->size_bytes();
  }
  return where;
}

void Clear(const Results& where) {
  if (where.rows_bytes > 0) std::memset(where.rows, 0, where.rows_bytes);
  if (where.weights_bytes > 0) std::memset(where.weights, 0, where.weights_bytes);
}

// Once the call has ended.
void HandOver(const StartedCall& call, const client::Status& status, const Results& where,
              ffi::Promise& promise) {
  if (!status.ok()) {
    Fail(promise, status);
  } else if (call.Copy(where.rows, where.rows_bytes, where.weights, where.weights_bytes)) {
    promise.SetAvailable();  // Runs what follows in the program, here.
  } else {
    promise.SetError(NoSuchCall("the exchange of this number has results of other sizes"));
  }
}

// The results of a call that was started, or zeros of none: the derivative of what nothing depends on.
// NOLINTNEXTLINE(readability-function-size): as above.
ffi::Future Done(Scalar, Scalar, Token token, ffi::RemainingArgs, ffi::RemainingRets results,
                 ffi::Dictionary) {
  const Results where = WhereOf(results);
  ffi::Promise promise;
  ffi::Future future(promise);
  const std::uint64_t number = GetNumber(token.typed_data());
  std::shared_ptr<StartedCall> started = StartedCalls::Shared().Take(number);
  if (number == 0) {
    Clear(where);
    promise.SetAvailable();
  } else if (started == nullptr) {
    promise.SetError(NoSuchCall("no exchange of this number is under way"));
  } else {
    StartedCall& call = *started;
    call.Await([started = std::move(started), where,
                promise = std::make_shared<ffi::Promise>(promise)](const client::Status& status) {
      HandOver(*started, status, where, *promise);
    });
  }
  return future;
}

auto BindStart() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<SiteState>>()
      .Ctx<ffi::RunId>()
      .Arg<Scalar>()
      .Arg<Scalar>()
      .Arg<HandleMem>()
      .Arg<ffi::AnyBuffer>();
}
auto BindStartWithWeights() {
  return BindStart().Arg<Weights>().RemainingArgs().Ret<Token>().Attrs();
}
auto BindStartWithoutWeights() { return BindStart().RemainingArgs().Ret<Token>().Attrs(); }

}  // namespace

EPD_JAX_HANDLER(epd_jax_dispatch_start, StartWithWeights<epd_program_dispatch>,
                BindStartWithWeights());
EPD_JAX_HANDLER(epd_jax_combine_start, StartWithoutWeights<epd_program_combine>,
                BindStartWithoutWeights());
EPD_JAX_HANDLER(epd_jax_dispatch_bwd_start, StartWithWeights<epd_program_dispatch_backward>,
                BindStartWithWeights());
EPD_JAX_HANDLER(epd_jax_combine_bwd_start, StartWithoutWeights<epd_program_combine_backward>,
                BindStartWithoutWeights());
EPD_JAX_HANDLER(epd_jax_done, Done,
                ffi::Ffi::Bind()
                    .Arg<Scalar>()
                    .Arg<Scalar>()
                    .Arg<Token>()
                    .RemainingArgs()
                    .RemainingRets()
                    .Attrs());

}  // namespace epd::jax
