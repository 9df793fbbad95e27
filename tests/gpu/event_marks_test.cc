// Goal: a time between two places is that of the work between them, in a stream as in each replay of a graph, and a
// mark that could not say so is an error of its call.
#include "tests/gpu/event_marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "tests/unit/client/jax/call_frame.h"
#include "xla/ffi/api/c_api.h"

extern "C" XLA_FFI_Error* EpdEventMark(XLA_FFI_CallFrame*);

namespace epd::gpu {
namespace {

using ::testing::HasSubstr;

// A device whose streams do at once what they are given, whose clock is told by the test, and whose captures keep calls
// in place of making them. One at a time per process.
struct FakeDevice {
  using Graph = std::vector<std::function<void()>>;

  FakeDevice() { the_one = this; }
  ~FakeDevice() { the_one = nullptr; }

  // What a kernel of so many milliseconds does, in the stream or in the graph.
  void Work(float ms) {
    Put([this, ms] { now_ms += ms; });
  }
  void Put(std::function<void()> step) { capturing ? graph.push_back(step) : step(); }
  static void Replay(const Graph& graph) {
    for (const auto& step : graph) step();
  }

  static Driver Table();

  static FakeDevice* the_one;
  bool capturing = false;
  Graph graph;
  float now_ms = 0;
  std::map<CUevent, std::optional<float>> events;
  std::map<CUevent, CUdevice> homes;
  CUdevice current = -1;
};
FakeDevice* FakeDevice::the_one = nullptr;

Driver FakeDevice::Table() {
  Driver driver;
  driver.GetErrorName = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
  };
  driver.DeviceGet = [](CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  };
  driver.DevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
    *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
    return CUDA_SUCCESS;
  };
  driver.CtxSetCurrent = [](CUcontext context) {
    the_one->current = static_cast<CUdevice>(reinterpret_cast<std::uintptr_t>(context)) - 1;
    return CUDA_SUCCESS;
  };
  driver.EventCreate = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(the_one->events.size() + 1);
    the_one->events[*event];
    the_one->homes[*event] = the_one->current;
    return CUDA_SUCCESS;
  };
  driver.StreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = the_one->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  driver.EventRecord = [](CUevent event, CUstream) {
    // In a capture it is no node: no replay comes to it.
    if (!the_one->capturing) the_one->events[event] = the_one->now_ms;
    return CUDA_SUCCESS;
  };
  driver.EventRecordWithFlags = [](CUevent event, CUstream, unsigned flags) {
    // "This flag is invalid when used outside of capture": cuda.h.
    if (flags != CU_EVENT_RECORD_EXTERNAL || !the_one->capturing) return CUDA_ERROR_INVALID_VALUE;
    the_one->Put([event] { the_one->events[event] = the_one->now_ms; });
    return CUDA_SUCCESS;
  };
  driver.EventElapsedTime = [](float* ms, CUevent begin, CUevent end) {
    const auto from = the_one->events[begin];
    const auto to = the_one->events[end];
    if (!from || !to) return CUDA_ERROR_INVALID_HANDLE;
    *ms = *to - *from;
    return CUDA_SUCCESS;
  };
  return driver;
}

class Marks : public ::testing::Test {
 protected:
  FakeDevice device_;
  const Driver driver_ = FakeDevice::Table();
  EventMarks marks_{driver_};
};

TEST_F(Marks, TellTheTimeOfWhatStandsBetweenThemInAStream) {
  ASSERT_EQ(marks_.Make(1, 3), "");
  device_.Work(9);
  EXPECT_EQ(marks_.Record(0, 0, nullptr), "");
  device_.Work(2);
  EXPECT_EQ(marks_.Record(0, 1, nullptr), "");
  device_.Work(0.5);
  EXPECT_EQ(marks_.Record(0, 2, nullptr), "");
  EXPECT_EQ(marks_.ElapsedUs(0, 0, 1), 2000);
  EXPECT_EQ(marks_.ElapsedUs(0, 1, 2), 500);
  EXPECT_EQ(marks_.ElapsedUs(0, 0, 2), 2500);
  EXPECT_EQ(marks_.captured(), 0);
}

TEST_F(Marks, AreRecordedAnewByEachReplayOfAGraph) {
  ASSERT_EQ(marks_.Make(1, 2), "");
  device_.capturing = true;
  EXPECT_EQ(marks_.Record(0, 0, nullptr), "");
  float ms = 1;
  device_.Put([&] { device_.now_ms += ms; });
  EXPECT_EQ(marks_.Record(0, 1, nullptr), "");
  device_.capturing = false;
  EXPECT_EQ(marks_.captured(), 2);
  EXPECT_LT(marks_.ElapsedUs(0, 0, 1), 0) << "captured, and not replayed yet";
  for (const float took : {4.0F, 3.0F}) {
    ms = took;
    FakeDevice::Replay(device_.graph);
    EXPECT_EQ(marks_.ElapsedUs(0, 0, 1), 1000 * took);
  }
}

TEST_F(Marks, OfEachDeviceAreItsOwn) {
  ASSERT_EQ(marks_.Make(2, 1), "");
  EXPECT_EQ(device_.homes.begin()->second, 0);
  EXPECT_EQ(device_.homes.rbegin()->second, 1);
  EXPECT_EQ(marks_.Record(1, 0, nullptr), "");
  EXPECT_EQ(marks_.ElapsedUs(1, 0, 0), 0);
  EXPECT_LT(marks_.ElapsedUs(0, 0, 0), 0) << "the other device came to none";
}

TEST_F(Marks, ThatThereAreNoneOfAreErrors) {
  EXPECT_THAT(marks_.Make(3, 1), HasSubstr("cuDeviceGet: CUDA_ERROR_OF_THE_TEST"));
  EXPECT_EQ(marks_.Record(0, 1, nullptr), "no event 1 of device 0");
  EXPECT_EQ(marks_.Record(2, 0, nullptr), "no event 0 of device 2");
  EXPECT_EQ(marks_.Record(0, -1, nullptr), "no event -1 of device 0");
  EXPECT_LT(marks_.ElapsedUs(0, 0, 1), 0);
}

TEST(MarkCall, MayBeInACommandBufferAndFailsWhereNothingWasMade) {
  EXPECT_TRUE(jax::FakeSite::TraitsOf(&EpdEventMark) &
              XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
  jax::FakeSite site(nullptr, nullptr, &EpdEventMark);
  float rows[4] = {};
  site.Attribute("number", 0);
  site.Operand(XLA_FFI_DataType_F32, rows, {4});
  site.Result(XLA_FFI_DataType_F32, rows, {4});
  EXPECT_THAT(site.Execute(0, nullptr).message, HasSubstr("EpdEventsInit was not called"));
}

}  // namespace
}  // namespace epd::gpu
