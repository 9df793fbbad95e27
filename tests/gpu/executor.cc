#include "tests/gpu/executor.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fakes/cuda/host_run.h"

namespace epd::gpu {
namespace {

class GpuExecutor : public Executor {
 public:
  GpuExecutor(const Driver& driver, const Device& device, const void* image)
      : driver_(driver), device_(device), launcher_(driver, image) {
    Check(driver_, driver_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~GpuExecutor() override { FreeAll(); }

  void* Allocate(std::size_t bytes) override {
    CUdeviceptr memory = 0;
    Check(driver_, driver_.MemAllocManaged(&memory, bytes > 0 ? bytes : 1, CU_MEM_ATTACH_GLOBAL),
          "cuMemAllocManaged");
    allocated_.push_back(memory);
    return reinterpret_cast<void*>(memory);
  }
  void FreeAll() override {
    for (const CUdeviceptr memory : allocated_) driver_.MemFree(memory);
    allocated_.clear();
  }
  bool Run(const cuda::LaunchList& list) override {
    launcher_.Launch(list, stream_);
    Check(driver_, driver_.StreamSynchronize(stream_), list[0].function);
    return true;
  }
  cuda::DeviceShape Shape() const override {
    cuda::DeviceShape shape;
    shape.num_sms = device_.num_sms;
    shape.compute_capability = device_.compute_capability;
    return shape;
  }
  std::string Name() const override { return device_.name; }

 private:
  const Driver& driver_;
  const Device& device_;
  GpuLauncher launcher_;
  CUstream stream_ = nullptr;
  std::vector<CUdeviceptr> allocated_;
};

class HostExecutor : public Executor {
 public:
  ~HostExecutor() override { FreeAll(); }
  void* Allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) != 0) std::abort();
    allocated_.push_back(memory);
    return memory;
  }
  void FreeAll() override {
    for (void* memory : allocated_) std::free(memory);
    allocated_.clear();
  }
  bool Run(const cuda::LaunchList& list) override {
    return RunOnHost(list, cuda::HostOrder::kShuffled);
  }
  cuda::DeviceShape Shape() const override { return {3, 90, 0, INT64_MAX}; }
  std::string Name() const override { return "host"; }

 private:
  std::vector<void*> allocated_;
};

}  // namespace

GpuLauncher::GpuLauncher(const Driver& driver, const void* image) : driver_(driver) {
  Check(driver_, driver_.ModuleLoadData(&module_, image), "cuModuleLoadData");
}

CUfunction GpuLauncher::Find(const cuda::Launch& launch) {
  CUfunction& function = functions_[launch.function];
  if (function != nullptr) return function;
  Check(driver_, driver_.ModuleGetFunction(&function, module_, launch.function), launch.function);
  if (launch.shared_bytes > 48 * 1024) {
    Check(driver_,
          driver_.FuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                   static_cast<int>(launch.shared_bytes)),
          "cuFuncSetAttribute");
  }
  return function;
}

void GpuLauncher::Launch(const cuda::LaunchList& list, CUstream stream) {
  for (const cuda::Launch& launch : list) {
    void* parameters[] = {const_cast<std::uint8_t*>(launch.args)};
    Check(driver_,
          driver_.LaunchKernel(Find(launch), launch.grid, 1, 1, launch.threads, 1, 1,
                               launch.shared_bytes, stream, parameters, nullptr),
          launch.function);
  }
}

std::unique_ptr<Executor> MakeGpuExecutor(const Driver& driver, const Device& device,
                                          const void* image) {
  return std::make_unique<GpuExecutor>(driver, device, image);
}

std::unique_ptr<Executor> MakeHostExecutor() { return std::make_unique<HostExecutor>(); }

std::vector<std::max_align_t> ReadImage(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    std::fprintf(stderr, "cannot read the kernels' image %s\n", path.c_str());
    std::exit(kFailed);
  }
  const auto bytes = static_cast<std::size_t>(file.tellg());
  std::vector<std::max_align_t> image(bytes / sizeof(std::max_align_t) + 1);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(bytes));
  return image;
}

}  // namespace epd::gpu
