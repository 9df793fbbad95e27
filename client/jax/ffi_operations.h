// What the handlers of all platforms have in common: call sites, operands and results, element types,
// errors.
//
// Operands begin with two int32: the domain (the index over all mesh axes but ep) and the position
// along ep. They may end with one that nobody reads: it comes from the call that is to be made before
// this one. Attributes are the alias and static sizes, see CallConfig.
#pragma once

#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "client/c/c_status.h"
#include "client/c/epd_client.h"
#include "client/c/status.h"
#include "client/jax/call_site.h"
#include "client/jax/started_calls.h"
#include "client/program/api_words.h"

namespace epd::program {
class DeviceSites;
}

namespace epd::jax {

// A call site as XLA holds it: created by the instantiate stage, given to every execution.
struct SiteState : CallSite {
  explicit SiteState(CallSite site) : CallSite(std::move(site)) {}

  // Of calls in two halves, which may outlive the executable.
  const std::shared_ptr<StartOrder> starts = std::make_shared<StartOrder>();

  // Of calls on GPUs; made by the first of them. Goes with the executable.
  std::shared_ptr<program::DeviceSites> devices;

  static ::xla::ffi::TypeId id;  // Ours: ffi_site.cc.
};

using Scalar = ::xla::ffi::Buffer<::xla::ffi::S32>;
using Counts = ::xla::ffi::Buffer<::xla::ffi::S32>;
using HandleMem = ::xla::ffi::Buffer<::xla::ffi::U8>;
using Weights = ::xla::ffi::Buffer<::xla::ffi::F32>;

// `binding`: what a platform's handlers are called with first, up to domain and position.
template <typename Binding>
auto BindPrepare(Binding binding) {
  return std::move(binding)
      .template Arg<::xla::ffi::AnyBuffer>()
      .RemainingArgs()
      .template Ret<Counts>()
      .template Ret<Counts>()
      .template Ret<HandleMem>()
      .Attrs();
}

// Of dispatch and its backward.
template <typename Binding>
auto BindRowsWithWeights(Binding binding) {
  return std::move(binding)
      .template Arg<HandleMem>()
      .template Arg<::xla::ffi::AnyBuffer>()
      .template Arg<Weights>()
      .RemainingArgs()
      .template Ret<::xla::ffi::AnyBuffer>()
      .template Ret<Weights>()
      .Attrs();
}

// Of combine and its backward.
template <typename Binding>
auto BindRows(Binding binding) {
  return std::move(binding)
      .template Arg<HandleMem>()
      .template Arg<::xla::ffi::AnyBuffer>()
      .RemainingArgs()
      .template Ret<::xla::ffi::AnyBuffer>()
      .Attrs();
}

inline epd_dtype ToDtype(::xla::ffi::DataType type) {
  switch (type) {
    case ::xla::ffi::DataType::F32:
      return EPD_DTYPE_FLOAT32;
    case ::xla::ffi::DataType::BF16:
      return EPD_DTYPE_BFLOAT16;
    case ::xla::ffi::DataType::F16:
      return EPD_DTYPE_FLOAT16;
    default: {
      const auto width = static_cast<unsigned>(::xla::ffi::ByteWidth(type));
      return EPD_DTYPE_OPAQUE(width, static_cast<unsigned>(type) & 0xff);
    }
  }
}

// Why a call failed, as its caller is told.
inline client::Status InWords(const client::Status& status, const CallConfig& call) {
  if (status.ok()) return status;
  const program::CallWords words = {TokensArgument(call.operation), call.shards, call.program};
  return {status.code, program::InApiWords(status.code, status.message, &words)};
}

inline ::xla::ffi::Error ToXla(const client::Status& status) {
  if (status.ok()) return ::xla::ffi::Error::Success();
  return ::xla::ffi::Error(static_cast<::xla::ffi::ErrorCode>(status.code),
                           std::string(status.message));
}

inline ::xla::ffi::Error ToXla(const client::Status& status, const CallConfig& call) {
  return ToXla(InWords(status, call));
}

// Ends what XLA waits for, also where there is no memory for the words: these lie in the string itself.
inline void Fail(::xla::ffi::Promise& promise, const client::Status& status) {
  try {
    promise.SetError(ToXla(status));
  } catch (const std::bad_alloc&) {
    promise.SetError({::xla::ffi::ErrorCode::kResourceExhausted, "out of memory"});
  }
}

// What is being caught, as XLA takes it.
inline XLA_FFI_Error* CaughtError(const XLA_FFI_Api* api) {
  epd_error error = {};
  error.struct_size = sizeof error;
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.errc = static_cast<XLA_FFI_Error_Code>(client::ReportCaught(&error));
  args.message = error.message;
  return api->XLA_FFI_Error_Create(&args);
}

// XLA is built without exceptions, so none may leave a handler: it would end the process.
template <typename Call>
XLA_FFI_Error* GuardedHandler(const XLA_FFI_CallFrame* frame, Call&& call) {
  try {
    return call();
  } catch (...) {
    return CaughtError(frame->api);
  }
}

// XLA_FFI_DEFINE_HANDLER_SYMBOL with that guard.
#define EPD_JAX_HANDLER(name, function, ...)                  \
  extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {  \
    return ::epd::jax::GuardedHandler(frame, [frame] {        \
      XLA_FFI_DEFINE_HANDLER(handler, function, __VA_ARGS__); \
      return (*handler)(frame);                               \
    });                                                       \
  }                                                           \
  static_assert(true, "a semicolon follows")

// Takes the rank's place in a call that it has no memory for, so that no other rank waits for it. Call it before the call itself.
inline void RefuseForMemory(const epd_program_call& call) {
  epd_error error = {};
  error.struct_size = sizeof error;
  static_cast<void>(epd_program_refuse(&call,
                                       static_cast<std::int32_t>(client::Code::kResourceExhausted),
                                       client::kOutOfMemory.data(), &error));
}

// A call that got no thread of its own.
inline client::Status NoThread(const CallConfig& call, std::int32_t position) {
  return {client::Code::kResourceExhausted,
          "[epd:RESOURCE_EXHAUSTED] group=" + call.alias + " rank=" + std::to_string(position) +
              " phase=begin: no thread for " + OperationName(call.operation) +
              ": the limit of threads of this process or user is reached"};
}

}  // namespace epd::jax
