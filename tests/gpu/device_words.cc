// T3: what wakes a stream that waits on a word in device memory? A stream write, a kernel's store, a
// copy from the host, a copy on the device: each is tried and said, none is required but the first.
//
//   device_words --image FATBIN
#include <cstring>
#include <functional>
#include <string>

#include "kernels/cuda/launch.h"
#include "tests/gpu/executor.h"
#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

struct Setup {
  const Driver& driver;
  CUstream waiter = nullptr;
  CUstream other = nullptr;
  CUdeviceptr word = 0;
  CUdeviceptr one = 0;  // a device word that holds 1
};

// Whether `wake` ends a wait that is already pending, within two seconds.
bool Wakes(const Setup& setup, const std::function<void()>& wake) {
  const Driver& driver = setup.driver;
  Check(driver, driver.StreamWriteValue32(setup.other, setup.word, 0, 0), "cuStreamWriteValue32");
  Check(driver, driver.StreamSynchronize(setup.other), "cuStreamSynchronize");
  Check(driver, driver.StreamWaitValue32(setup.waiter, setup.word, 1, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
  const auto is_over = [&] { return driver.StreamQuery(setup.waiter) != CUDA_ERROR_NOT_READY; };
  if (PollFor(0.01, is_over)) return false;  // It did not even wait.
  wake();
  const bool woken = PollFor(2, is_over);
  Check(driver, driver.StreamWriteValue32(setup.other, setup.word, 1, 0), "cuStreamWriteValue32");
  Check(driver, driver.StreamSynchronize(setup.waiter), "the wait must end by a stream write");
  Check(driver, driver.StreamSynchronize(setup.other), "cuStreamSynchronize");
  return woken;
}

int Main(int argc, char** argv) {
  std::string image_path;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--image") == 0) image_path = argv[i + 1];
  }
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  const auto image = ReadImage(image_path);
  GpuLauncher launcher(driver, image.data());
  Setup setup{driver};
  Check(driver, driver.StreamCreate(&setup.waiter, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Check(driver, driver.StreamCreate(&setup.other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Check(driver, driver.MemAlloc(&setup.word, 256), "cuMemAlloc");
  Check(driver, driver.MemAlloc(&setup.one, 256), "cuMemAlloc");
  const std::uint32_t one = 1;
  Check(driver, driver.MemcpyHtoD(setup.one, &one, 4), "cuMemcpyHtoD");
  Words* words = MakeWords();
  RegisterWords(driver, words);
  words->ready = 1;

  cuda::CopyRowsArgs args;
  args.from = reinterpret_cast<const std::uint8_t*>(setup.one);
  args.to = reinterpret_cast<std::uint8_t*>(setup.word);
  args.max_rows = 1;
  args.row_bytes = 4;
  const cuda::LaunchList list =
      CopyRowsLaunches(args, {1, device.compute_capability, 0, INT64_MAX});
  // Loads the kernel before anything waits.
  launcher.Launch(list, setup.other);
  Check(driver, driver.StreamSynchronize(setup.other), "warm-up");

  const bool by_write = Wakes(setup, [&] {
    Check(driver, driver.StreamWriteValue32(setup.other, setup.word, 1, 0), "write");
  });
  const bool by_kernel = Wakes(setup, [&] { launcher.Launch(list, setup.other); });
  const bool by_host_copy = Wakes(setup, [&] {
    Check(driver, driver.MemcpyHtoDAsync(setup.word, &words->ready, 4, setup.other), "copy");
  });
  const bool by_device_copy = Wakes(setup, [&] {
    Check(driver, driver.MemcpyDtoDAsync(setup.word, setup.one, 4, setup.other), "copy");
  });
  std::printf(
      "{\"name\": \"T3 device words\", \"stream_write\": %s, \"kernel_store\": %s, "
      "\"host_copy\": %s, \"device_copy\": %s, \"passed\": %s}\n",
      Json(by_write), Json(by_kernel), Json(by_host_copy), Json(by_device_copy), Json(by_write));
  return by_write ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
