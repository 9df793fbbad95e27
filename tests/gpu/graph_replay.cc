// T2: a wait on a host word, captured once and replayed many times, is woken by a CPU store each time; and what a thread of epd's
// client does meanwhile, in the relaxed mode, leaves the capture of another thread whole. What becomes of one where somebody waits
// for the context is told, and should be nothing good.
//
//   graph_replay [--replays N] [--seconds S]     as many as S seconds allow, and at least 1000
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

constexpr long kLeast = 1000;

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

// Whether a capture of the strictest mode outlives what another thread does.
template <typename Act>
bool Outlives(const Driver& driver, const Device& device, CUstream stream, Act act) {
  Check(driver, driver.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
        "cuStreamBeginCapture");
  bool done = false;
  std::thread([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    Check(driver, driver.ThreadExchangeStreamCaptureMode(&mode),
          "cuThreadExchangeStreamCaptureMode");
    Check(driver, driver.CtxSetCurrent(device.context), "cuCtxSetCurrent");
    done = act() == CUDA_SUCCESS;
  }).join();
  CUgraph graph = nullptr;
  return driver.StreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph != nullptr && done;
}

CUresult MapAndUnmap(const Driver& driver, const Device& device) {
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.device};
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUresult code = driver.MemCreate(&handle, kBytes, &properties, 0);
  if (code == CUDA_SUCCESS) code = driver.MemAddressReserve(&address, kBytes, 0, 0, 0);
  if (code == CUDA_SUCCESS) code = driver.MemMap(address, kBytes, 0, handle, 0);
  if (code == CUDA_SUCCESS) code = driver.MemSetAccess(address, kBytes, &access, 1);
  if (code == CUDA_SUCCESS) code = driver.MemUnmap(address, kBytes);
  return code == CUDA_SUCCESS ? driver.MemRelease(handle) : code;
}

int Main(int argc, char** argv) {
  long wanted = 100000;
  double seconds = 3600;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--replays") == 0) wanted = std::atol(argv[i + 1]);
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
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
  const double end = NowUs() + seconds * 1e6;
  long replays = 0;
  for (; finished && replays < wanted && NowUs() < end; ++replays) {
    const double begin = NowUs();
    Check(driver, driver.GraphLaunch(graph, stream), "cuGraphLaunch");
    finished = PollFor(10, [&] { return driver.StreamQuery(stream) != CUDA_ERROR_NOT_READY; });
    times.push_back(NowUs() - begin);
  }
  words->done = 1;
  words->stop = 1;
  coordinator.join();
  CUstream other = nullptr;
  Check(driver, driver.StreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const bool query = Outlives(driver, device, stream, [&] { return driver.StreamQuery(other); });
  const bool mapping =
      Outlives(driver, device, stream, [&] { return MapAndUnmap(driver, device); });
  const bool waiting = Outlives(driver, device, stream, [&] { return driver.CtxSynchronize(); });
  const Quantiles us = QuantilesOf(times);
  const bool enough = replays >= std::min(wanted, kLeast);
  const bool passed = finished && answered == replays && enough && query && mapping;
  std::printf(
      "{\"name\": \"T2 graph replay\", \"replays\": %ld, \"answered\": %ld, \"p50_us\": %.2f, "
      "\"p99_us\": %.2f, \"a_capture_outlives\": {\"query\": %s, \"mapping\": %s, "
      "\"synchronize\": %s}, \"passed\": %s}\n",
      replays, answered.load(), us.p50, us.p99, Json(query), Json(mapping), Json(waiting),
      Json(passed));
  return passed ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
