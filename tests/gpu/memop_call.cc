// T4: a custom call for XLA that arms a slot and waits for it with stream memory operations, marked
// compatible with command buffers; a thread of this library answers. jax_probe.py runs it in jit.
#include <atomic>
#include <cstdint>
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

// Made at the first call, on XLA's context; lives as long as the process, as the captured graphs do.
Slot* TheSlot() {
  static Slot* slot = [] {
    auto* made = new Slot;
    std::string why;
    if (!OpenDriver(&made->driver, &why)) return static_cast<Slot*>(nullptr);
    made->words = MakeWords();
    made->on_device = RegisterWords(made->driver, made->words);
    std::thread([made] {
      while (true) {
        std::uint32_t armed = 1;
        if (!made->words->ready.compare_exchange_strong(armed, 0)) continue;
        ++made->answers;
        made->words->done = 1;
      }
    }).detach();
    return made;
  }();
  return slot;
}

ffi::Error MemopCall(CUstream stream, ffi::AnyBuffer in, ffi::Result<ffi::AnyBuffer> out) {
  Slot* slot = TheSlot();
  if (slot == nullptr) return ffi::Error::Internal("no CUDA driver");
  ++slot->calls;
  ArmAndWait(slot->driver, stream, slot->on_device);
  const CUresult copied = slot->driver.MemcpyDtoDAsync(
      reinterpret_cast<CUdeviceptr>(out->untyped_data()),
      reinterpret_cast<CUdeviceptr>(in.untyped_data()), in.size_bytes(), stream);
  return copied == CUDA_SUCCESS ? ffi::Error::Success() : ffi::Error::Internal("copy failed");
}

}  // namespace
}  // namespace epd::gpu

XLA_FFI_DEFINE_HANDLER_SYMBOL(EpdMemopCall, epd::gpu::MemopCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>(),
                              {ffi::Traits::kCmdBufferCompatible});

extern "C" std::int64_t EpdMemopCalls() { return epd::gpu::TheSlot()->calls; }
extern "C" std::int64_t EpdMemopAnswers() { return epd::gpu::TheSlot()->answers; }
