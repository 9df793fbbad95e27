// T1: a client's stream waits, a worker in another process answers; once from its CPU, once behind a
// kernel of its own. How long does a hand-over take, and does the waiter keep the GPU from the worker?
//
//   handover --image FATBIN
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <string>

#include "kernels/cuda/launch.h"
#include "tests/gpu/executor.h"
#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

constexpr int kHandovers = 2000;
constexpr double kDeadlineSeconds = 20;

// A copy that keeps the device busy for a while.
cuda::LaunchList CopyList(const Driver& driver, const Device& device, std::int64_t rows) {
  CUdeviceptr from = 0;
  CUdeviceptr to = 0;
  const std::size_t bytes = static_cast<std::size_t>(rows) * 16384;
  Check(driver, driver.MemAlloc(&from, bytes), "cuMemAlloc");
  Check(driver, driver.MemAlloc(&to, bytes), "cuMemAlloc");
  cuda::CopyRowsArgs args;
  args.from = reinterpret_cast<const std::uint8_t*>(from);
  args.to = reinterpret_cast<std::uint8_t*>(to);
  args.max_rows = rows;
  args.row_bytes = 16384;
  return CopyRowsLaunches(args, {device.num_sms, device.compute_capability, 0, INT64_MAX});
}

struct Worker {
  Words* words;
  const std::string& image_path;
  bool runs_kernel;

  // Answers every `ready` until `stop`.
  int Run() const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Driver driver;
    Device device;
    OpenOrExit(&driver, &device);
    const auto image = ReadImage(image_path);
    GpuLauncher launcher(driver, image.data());
    CUstream stream = nullptr;
    Check(driver, driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    const CUdeviceptr on_device = RegisterWords(driver, words);
    const cuda::LaunchList list = CopyList(driver, device, 64);
    launcher.Launch(list, stream);
    Check(driver, driver.StreamSynchronize(stream), "warm-up");
    words->started = 1;
    while (words->stop == 0) {
      std::uint32_t armed = 1;
      if (!words->ready.compare_exchange_strong(armed, 0)) continue;
      if (runs_kernel) {
        words->done_by_gpu = 0;
        launcher.Launch(list, stream);
        Check(driver,
              driver.StreamWriteValue32(stream, on_device + offsetof(Words, done_by_gpu), 1, 0),
              "cuStreamWriteValue32");
        if (!PollFor(kDeadlineSeconds, [this] { return words->done_by_gpu == 1; })) return kFailed;
      }
      words->done = 1;
    }
    return kPassed;
  }
};

struct Outcome {
  bool finished;
  Quantiles us;
};

Outcome RunClient(Words* words) {
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  CUstream stream = nullptr;
  Check(driver, driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const CUdeviceptr on_device = RegisterWords(driver, words);
  std::vector<double> times;
  bool finished = PollFor(kDeadlineSeconds, [words] { return words->started == 1; });
  for (int i = 0; finished && i < kHandovers; ++i) {
    const double begin = NowUs();
    ArmAndWait(driver, stream, on_device);
    finished = PollFor(kDeadlineSeconds,
                       [&] { return driver.StreamQuery(stream) != CUDA_ERROR_NOT_READY; });
    times.push_back(NowUs() - begin);
  }
  words->done = 1;  // Ends a wait that nobody answered.
  words->stop = 1;
  if (times.empty()) times.push_back(0);
  return {finished, QuantilesOf(times)};
}

// A process per side, forked before either has touched CUDA.
bool RunPair(const char* name, const std::string& image_path, bool runs_kernel) {
  Words* words = MakeWords();
  std::fflush(stdout);
  const pid_t worker = fork();
  if (worker == 0) std::exit(Worker{words, image_path, runs_kernel}.Run());
  const pid_t client = fork();
  if (client == 0) {
    const Outcome outcome = RunClient(words);
    std::printf("\"%s\": {\"finished\": %s, \"p50_us\": %.2f, \"p99_us\": %.2f}, ", name,
                Json(outcome.finished), outcome.us.p50, outcome.us.p99);
    std::fflush(stdout);
    std::exit(outcome.finished ? kPassed : kFailed);
  }
  int client_status = 0;
  int worker_status = 0;
  waitpid(client, &client_status, 0);
  words->stop = 1;
  waitpid(worker, &worker_status, 0);
  return client_status == 0 && worker_status == 0;
}

int Main(int argc, char** argv) {
  std::string image_path;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--image") == 0) image_path = argv[i + 1];
  }
  Driver driver;
  std::string why;
  // Asks in a child: a process that has called cuInit must not fork.
  const pid_t probe = fork();
  if (probe == 0) {
    Device device;
    OpenOrExit(&driver, &device);
    std::exit(kPassed);
  }
  int status = 0;
  waitpid(probe, &status, 0);
  if (status != 0) return WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
  std::printf("{\"name\": \"T1 handover\", ");
  const bool by_cpu = RunPair("cpu_answers", image_path, false);
  const bool by_kernel = RunPair("kernel_answers", image_path, true);
  std::printf("\"handovers\": %d, \"passed\": %s}\n", kHandovers, Json(by_cpu && by_kernel));
  return by_cpu && by_kernel ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
