// A custom call for XLA that marks a place in a program: it records an event in XLA's stream, and gives its operands
// back in their own memory. What depends on its results comes behind it, and what its operands depend on before.
// event_marks.py puts it into programs and reads the times.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "tests/gpu/event_marks.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace epd::gpu {
namespace {

// Live as long as the process, as the captured graphs do.
Driver the_driver;
EventMarks* the_marks = nullptr;

// A place would lie about what stands around it if XLA copied the operands at it.
bool InPlace(ffi::RemainingArgs in, ffi::RemainingRets out) {
  if (in.size() != out.size()) return false;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto from = in.get<ffi::AnyBuffer>(i);
    auto to = out.get<ffi::AnyBuffer>(i);
    if (!from.has_value() || !to.has_value()) return false;
    if (from->untyped_data() != (*to)->untyped_data()) return false;
  }
  return true;
}

ffi::Error EventMark(CUstream stream, std::int32_t device, std::int64_t number,
                     ffi::RemainingArgs in, ffi::RemainingRets out) {
  if (the_marks == nullptr) return ffi::Error::Internal("EpdEventsInit was not called, or failed");
  if (!InPlace(in, out)) return ffi::Error::Internal("the results are not the operands");
  const std::string why = the_marks->Record(device, number, stream);
  return why.empty() ? ffi::Error::Success() : ffi::Error::Internal(why);
}

std::string Init(int devices, int marks) {
  std::string why;
  if (!OpenDriver(&the_driver, &why)) return why;
  auto made = std::make_unique<EventMarks>(the_driver);
  why = made->Make(devices, marks);
  if (why.empty()) the_marks = made.release();
  return why;
}

}  // namespace
}  // namespace epd::gpu

XLA_FFI_DEFINE_HANDLER_SYMBOL(EpdEventMark, epd::gpu::EventMark,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<std::int64_t>("number")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

// To be called once, before anything is jitted: a captured call can make no event. Null, or what is wrong.
extern "C" const char* EpdEventsInit(int devices, int marks) {
  static std::string why;
  // On a thread of its own, so that the caller's current context stays as XLA left it.
  std::thread([=] { why = epd::gpu::Init(devices, marks); }).join();
  return why.empty() ? nullptr : why.c_str();
}
// Once EpdEventsInit has succeeded; as EventMarks has it.
extern "C" double EpdEventsElapsedUs(int device, std::int64_t from, std::int64_t to) {
  return epd::gpu::the_marks->ElapsedUs(device, from, to);
}
extern "C" std::int64_t EpdEventsCaptured() { return epd::gpu::the_marks->captured(); }
