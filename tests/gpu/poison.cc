// T8: a wait that nobody will answer can always be ended from outside, also in the middle of a graph's
// replay, and the context goes on; a client or a worker that is killed there leaves no memory behind.
#include <cstdio>
#include <cstring>

#include "tests/gpu/processes.h"
#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

constexpr std::size_t kBytes = std::size_t{512} << 20;
constexpr std::uint32_t kPoison = 1 + 14;

// Waits in a replayed graph; says 'w' when it does, and 'y' when it was ended with the poison's code
// and its context still works.
int WaitInGraph(Words* words, int socket) {
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUdeviceptr memory = 0;
  Check(driver, driver.MemAlloc(&memory, kBytes), "cuMemAlloc");
  Check(driver, driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const CUdeviceptr on_device = RegisterWords(driver, words);
  Check(driver, driver.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        "cuStreamBeginCapture");
  ArmAndWait(driver, stream, on_device);
  Check(driver, driver.StreamEndCapture(stream, &graph), "cuStreamEndCapture");
  Check(driver, driver.GraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
  Check(driver, driver.GraphLaunch(executable, stream), "cuGraphLaunch");
  Say(socket, 'w');
  if (!PollFor(20, [&] { return driver.StreamQuery(stream) != CUDA_ERROR_NOT_READY; })) {
    return kFailed;
  }
  const bool poisoned = words->done == kPoison;
  const bool works =
      driver.MemsetD8(memory, 1, kBytes) == CUDA_SUCCESS && driver.CtxSynchronize() == CUDA_SUCCESS;
  Say(socket, poisoned && works ? 'y' : 'n');
  return poisoned && works ? kPassed : kFailed;
}

// Takes the operation and never answers.
int TakeAndHang(Words* words, int socket) {
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  RegisterWords(driver, words);
  Say(socket, 'r');
  if (!PollFor(20, [words] { return words->ready == 1; })) return kFailed;
  words->ready = 0;
  Say(socket, 't');
  pause();
  return kPassed;
}

std::size_t FreeBytes() {
  const Child child = Spawn([](int socket) {
    Driver driver;
    Device device;
    OpenOrExit(&driver, &device);
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    Check(driver, driver.MemGetInfo(&free_bytes, &total), "cuMemGetInfo");
    return send(socket, &free_bytes, sizeof(free_bytes), 0) < 0 ? kFailed : kPassed;
  });
  std::size_t free_bytes = 0;
  if (recv(child.socket, &free_bytes, sizeof(free_bytes), 0) < 0) std::abort();
  Join(child);
  return free_bytes;
}

// The worker is killed in mid-operation; this process, which stands for epd, poisons.
bool WorkerIsKilled() {
  Words* words = MakeWords();
  const Child worker = Spawn([words](int socket) { return TakeAndHang(words, socket); });
  if (Hear(worker.socket) != 'r') return false;
  const Child client = Spawn([words](int socket) { return WaitInGraph(words, socket); });
  const bool waiting = Hear(client.socket) == 'w' && Hear(worker.socket) == 't';
  kill(worker.pid, SIGKILL);
  Join(worker);
  words->done = kPoison;
  const bool ended = waiting && Hear(client.socket) == 'y';
  return Join(client) == kPassed && ended;
}

// A client is killed while its stream waits; how long until it is gone and its memory is back.
bool ClientIsKilled(double* gone_ms) {
  Words* words = MakeWords();
  const std::size_t before = FreeBytes();
  const Child client = Spawn([words](int socket) { return WaitInGraph(words, socket); });
  if (Hear(client.socket) != 'w') return false;
  usleep(100000);
  const double begin = NowUs();
  kill(client.pid, SIGKILL);
  const bool gone = PollFor(20, [&] { return waitpid(client.pid, nullptr, WNOHANG) != 0; });
  *gone_ms = (NowUs() - begin) / 1000;
  words->done = kPoison;
  if (!gone) Join(client);
  return gone && PollFor(10, [&] { return FreeBytes() + kBytes / 2 > before; });
}

int Main() {
  if (const int status = ProbeGpu(); status != kPassed) return status;
  const bool worker = WorkerIsKilled();
  double gone_ms = 0;
  const bool client = ClientIsKilled(&gone_ms);
  std::printf(
      "{\"name\": \"T8 poison\", \"worker_killed_client_goes_on\": %s, "
      "\"client_killed_memory_returned\": %s, \"client_gone_ms\": %.1f, \"passed\": %s}\n",
      Json(worker), Json(client), gone_ms, Json(worker && client));
  return worker && client ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main() { return epd::gpu::Main(); }
