// A device for benchmarks: memory of it, and how long its stream takes with what it is given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/gpu/executor.h"

namespace epd::gpu {

struct Timing {
  double p50_us = 0;
  double p99_us = 0;
};

// How often what is timed runs, and how often before that.
struct Repeats {
  int warm = 10;
  int timed = 100;
};

// Of the context that is current when it is made and when it is used. Not thread-safe.
class TimedDevice {
 public:
  // Loads `image`. Ends the program where the device cannot.
  TimedDevice(const Driver& driver, const void* image, Repeats repeats)
      : driver_(driver), launcher_(driver, image), repeats_(repeats) {
    Check(driver_, driver_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    Check(driver_, driver_.EventCreate(&begin_, CU_EVENT_DEFAULT), "cuEventCreate");
    Check(driver_, driver_.EventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
  }

  CUstream stream() const { return stream_; }
  Repeats repeats() const { return repeats_; }

  // Memory whose bytes are 1, until FreeSince or the program's end.
  void* Allocate(std::size_t bytes) {
    CUdeviceptr memory = 0;
    Check(driver_, driver_.MemAlloc(&memory, bytes), "cuMemAlloc");
    Check(driver_, driver_.MemsetD8(memory, 1, bytes), "cuMemsetD8");
    allocated_.push_back(memory);
    return reinterpret_cast<void*>(memory);
  }
  std::size_t num_allocated() const { return allocated_.size(); }
  // Frees all but the first so many.
  void FreeSince(std::size_t num_allocated) {
    for (; allocated_.size() > num_allocated; allocated_.pop_back()) {
      Check(driver_, driver_.MemFree(allocated_.back()), "cuMemFree");
    }
  }
  template <typename T>
  T* Upload(const T* from, std::size_t count) {
    T* to = static_cast<T*>(Allocate(count * sizeof(T) + 16));
    Write(to, from, count);
    return to;
  }
  template <typename T>
  void Write(T* to, const T* from, std::size_t count) {
    Check(driver_, driver_.MemcpyHtoD(reinterpret_cast<CUdeviceptr>(to), from, count * sizeof(T)),
          "cuMemcpyHtoD");
  }

  // Of what `submit` puts into the stream, each run between two events.
  template <typename Submit>
  Timing Time(Submit submit) {
    std::vector<double> times;
    for (int i = 0; i < repeats_.warm + repeats_.timed; ++i) {
      Check(driver_, driver_.EventRecord(begin_, stream_), "cuEventRecord");
      submit();
      Check(driver_, driver_.EventRecord(end_, stream_), "cuEventRecord");
      Check(driver_, driver_.EventSynchronize(end_), "cuEventSynchronize");
      float ms = 0;
      Check(driver_, driver_.EventElapsedTime(&ms, begin_, end_), "cuEventElapsedTime");
      if (i >= repeats_.warm) times.push_back(ms * 1000.0);
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times[times.size() * 99 / 100]};
  }
  Timing TimeList(const cuda::LaunchList& list) {
    return Time([&] { launcher_.Launch(list, stream_); });
  }
  // As a captured program runs it: one of kReplays that stand behind each other in a graph.
  Timing TimeReplay(const cuda::LaunchList& list) {
    constexpr int kReplays = 20;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    Check(driver_, driver_.StreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
    for (int i = 0; i < kReplays; ++i) launcher_.Launch(list, stream_);
    Check(driver_, driver_.StreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    Check(driver_, driver_.GraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    const Timing timing =
        Time([&] { Check(driver_, driver_.GraphLaunch(exec, stream_), "cuGraphLaunch"); });
    return {timing.p50_us / kReplays, timing.p99_us / kReplays};
  }

 private:
  const Driver& driver_;
  GpuLauncher launcher_;
  const Repeats repeats_;
  std::vector<CUdeviceptr> allocated_;
  CUstream stream_ = nullptr;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
};

}  // namespace epd::gpu
