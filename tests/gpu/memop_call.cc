// T4: a custom call for XLA that arms a slot and waits for it with stream memory operations, marked
// compatible with command buffers; a thread of this library answers. jax_probe.py runs it in jit.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "tests/gpu/words.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace epd::gpu {
namespace {

struct Slot {
  Driver driver;
  Words* words = nullptr;
  CUdeviceptr on_device = 0;
  std::atomic<std::int64_t> calls = 0;    // of the handler
  std::atomic<std::int64_t> answers = 0;  // of the thread
};

Slot* the_slot = nullptr;  // Lives as long as the process, as the captured graphs do.

std::string Named(const Driver& driver, CUresult result, const char* what) {
  const char* name = nullptr;
  driver.GetErrorName(result, &name);
  return std::string(what) + ": " + (name != nullptr ? name : "unknown error");
}

// What is wrong, or nothing. Registers the words in the context that XLA uses too, the primary one.
std::string MakeSlot() {
  auto slot = std::make_unique<Slot>();
  std::string why;
  if (!OpenDriver(&slot->driver, &why)) return why;
  const Driver& driver = slot->driver;
  CUcontext context = nullptr;
  CUresult result = driver.DevicePrimaryCtxRetain(&context, 0);
  if (result != CUDA_SUCCESS) return Named(driver, result, "cuDevicePrimaryCtxRetain");
  result = driver.CtxSetCurrent(context);
  if (result != CUDA_SUCCESS) return Named(driver, result, "cuCtxSetCurrent");
  slot->words = MakeWords();
  result = driver.MemHostRegister(slot->words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS) return Named(driver, result, "cuMemHostRegister");
  result = driver.MemHostGetDevicePointer(&slot->on_device, slot->words, 0);
  if (result != CUDA_SUCCESS) return Named(driver, result, "cuMemHostGetDevicePointer");
  the_slot = slot.release();
  std::thread([slot = the_slot] {
    while (true) {
      std::uint32_t armed = 1;
      if (!slot->words->ready.compare_exchange_strong(armed, 0)) continue;
      ++slot->answers;
      slot->words->done = 1;
    }
  }).detach();
  return "";
}

// Only what may be captured: what else a call needs was made before.
ffi::Error MemopCall(CUstream stream, ffi::AnyBuffer in, ffi::Result<ffi::AnyBuffer> out) {
  Slot* slot = the_slot;
  if (slot == nullptr) return ffi::Error::Internal("EpdMemopInit was not called, or failed");
  ++slot->calls;
  auto ops = ArmAndWaitOps(slot->on_device);
  CUresult result = slot->driver.StreamBatchMemOp(stream, ops.size(), ops.data(), 0);
  if (result != CUDA_SUCCESS) {
    return ffi::Error::Internal(Named(slot->driver, result, "cuStreamBatchMemOp"));
  }
  result = slot->driver.MemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(out->untyped_data()),
                                        reinterpret_cast<CUdeviceptr>(in.untyped_data()),
                                        in.size_bytes(), stream);
  if (result == CUDA_SUCCESS) return ffi::Error::Success();
  return ffi::Error::Internal(Named(slot->driver, result, "cuMemcpyDtoDAsync"));
}

}  // namespace
}  // namespace epd::gpu

XLA_FFI_DEFINE_HANDLER_SYMBOL(EpdMemopCall, epd::gpu::MemopCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>(),
                              {ffi::Traits::kCmdBufferCompatible});

// To be called once, before anything is jitted: a captured call can register no memory. Null, or what is wrong.
extern "C" const char* EpdMemopInit() {
  static std::string why;
  // On a thread of its own, so that the caller's current context stays as XLA left it.
  std::thread([] { why = epd::gpu::MakeSlot(); }).join();
  return why.empty() ? nullptr : why.c_str();
}
extern "C" std::int64_t EpdMemopCalls() { return epd::gpu::the_slot->calls; }
extern "C" std::int64_t EpdMemopAnswers() { return epd::gpu::the_slot->answers; }
