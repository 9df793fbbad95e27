// T2: a wait on a host word, captured once and replayed many times, is woken by a CPU store each time.
//
//   graph_replay [--replays N]
#include <cstring>
#include <thread>

#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

CUgraphExec Capture(const Driver& driver, CUstream stream, CUdeviceptr words) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  Check(driver, driver.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCapture");
  ArmAndWait(driver, stream, words);
  Check(driver, driver.StreamEndCapture(stream, &graph), "cuStreamEndCapture");
  Check(driver, driver.GraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
  return executable;
}

int Main(int argc, char** argv) {
  long replays = 100000;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--replays") == 0) replays = std::atol(argv[i + 1]);
  }
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  CUstream stream = nullptr;
  Check(driver, driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Words* words = MakeWords();
  const CUdeviceptr on_device = RegisterWords(driver, words);
  CUgraphExec graph = Capture(driver, stream, on_device);
  std::atomic<long> answered = 0;
  std::thread coordinator([&] {
    while (words->stop == 0) {
      std::uint32_t armed = 1;
      if (!words->ready.compare_exchange_strong(armed, 0)) continue;
      words->done = 1;
      ++answered;
    }
  });
  std::vector<double> times;
  bool finished = true;
  for (long i = 0; finished && i < replays; ++i) {
    const double begin = NowUs();
    Check(driver, driver.GraphLaunch(graph, stream), "cuGraphLaunch");
    finished = PollFor(10, [&] { return driver.StreamQuery(stream) != CUDA_ERROR_NOT_READY; });
    times.push_back(NowUs() - begin);
  }
  words->done = 1;
  words->stop = 1;
  coordinator.join();
  const Quantiles us = QuantilesOf(times);
  const bool passed = finished && answered == replays;
  std::printf(
      "{\"name\": \"T2 graph replay\", \"replays\": %ld, \"answered\": %ld, \"p50_us\": %.2f, "
      "\"p99_us\": %.2f, \"passed\": %s}\n",
      replays, answered.load(), us.p50, us.p99, Json(passed));
  return passed ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
