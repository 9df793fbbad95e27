// T7: two ranks of one NCCL communicator on two GPUs, two threads of one process: init, then exact-size send and receive in one
// group. NCCL refuses two ranks on one GPU.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "tests/gpu/words.h"

namespace epd::gpu {
namespace {

// What this program needs of nccl.h, which may not be here.
struct UniqueId {
  char bytes[128];
};
using Comm = void*;
constexpr int kUint8 = 1;

struct Nccl {
  int (*GetVersion)(int*) = nullptr;
  int (*GetUniqueId)(UniqueId*) = nullptr;
  int (*CommInitRank)(Comm*, int, UniqueId, int) = nullptr;
  int (*CommAbort)(Comm) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*Send)(const void*, std::size_t, int, int, Comm, CUstream) = nullptr;
  int (*Recv)(void*, std::size_t, int, int, Comm, CUstream) = nullptr;
};

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool OpenNccl(Nccl* nccl) {
  const char* path = std::getenv("EPD_LIBNCCL");
  void* library = dlopen(path != nullptr ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && Load(library, "ncclGetVersion", &nccl->GetVersion) &&
         Load(library, "ncclGetUniqueId", &nccl->GetUniqueId) &&
         Load(library, "ncclCommInitRank", &nccl->CommInitRank) &&
         Load(library, "ncclCommAbort", &nccl->CommAbort) &&
         Load(library, "ncclGroupStart", &nccl->GroupStart) &&
         Load(library, "ncclGroupEnd", &nccl->GroupEnd) && Load(library, "ncclSend", &nccl->Send) &&
         Load(library, "ncclRecv", &nccl->Recv);
}

// Sends 3 MiB * (rank + 1) of bytes rank + 1 to the other; true if what comes is the other's.
bool Exchange(const Driver& driver, const Device& device, const Nccl& nccl, UniqueId id, int rank) {
  Check(driver, driver.CtxSetCurrent(device.context), "cuCtxSetCurrent");
  CUstream stream = nullptr;
  Check(driver, driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Comm comm = nullptr;
  if (nccl.CommInitRank(&comm, 2, id, rank) != 0) return false;
  const std::size_t out_bytes = std::size_t{3} << 20 << rank;
  const std::size_t in_bytes = std::size_t{3} << 20 << (1 - rank);
  CUdeviceptr out = 0;
  CUdeviceptr in = 0;
  Check(driver, driver.MemAlloc(&out, out_bytes), "cuMemAlloc");
  Check(driver, driver.MemAlloc(&in, in_bytes), "cuMemAlloc");
  Check(driver, driver.MemsetD8(out, static_cast<unsigned char>(rank + 1), out_bytes), "memset");
  Check(driver, driver.CtxSynchronize(), "cuCtxSynchronize");
  bool good = nccl.GroupStart() == 0;
  good = good &&
         nccl.Send(reinterpret_cast<void*>(out), out_bytes, kUint8, 1 - rank, comm, stream) == 0;
  good =
      good && nccl.Recv(reinterpret_cast<void*>(in), in_bytes, kUint8, 1 - rank, comm, stream) == 0;
  good = nccl.GroupEnd() == 0 && good;
  good = good && PollFor(20, [&] { return driver.StreamQuery(stream) != CUDA_ERROR_NOT_READY; });
  unsigned char last = 0;
  if (good) Check(driver, driver.MemcpyDtoH(&last, in + in_bytes - 1, 1), "cuMemcpyDtoH");
  nccl.CommAbort(comm);
  return good && last == 2 - rank;
}

int Main() {
  setenv("NCCL_MAX_CTAS", "4", 0);
  Driver driver;
  Device devices[2];
  OpenOrExit(&driver, &devices[0]);
  if (std::string why; !OpenDevice(driver, 1, &devices[1], &why)) {
    std::fprintf(stderr, "NCCL refuses two ranks on one GPU, and there is no second one: %s\n",
                 why.c_str());
    return kNoGpu;
  }
  Nccl nccl;
  if (!OpenNccl(&nccl)) {
    std::printf("{\"name\": \"T7 nccl ranks\", \"skipped\": \"no libnccl.so.2\"}\n");
    return kPassed;
  }
  int version = 0;
  UniqueId id;
  if (nccl.GetVersion(&version) != 0 || nccl.GetUniqueId(&id) != 0) return kFailed;
  bool good[2] = {};
  std::thread other([&] { good[1] = Exchange(driver, devices[1], nccl, id, 1); });
  good[0] = Exchange(driver, devices[0], nccl, id, 0);
  other.join();
  std::printf("{\"name\": \"T7 nccl ranks\", \"nccl\": %d, \"passed\": %s}\n", version,
              Json(good[0] && good[1]));
  return good[0] && good[1] ? kPassed : kFailed;
}

}  // namespace
}  // namespace epd::gpu

int main() { return epd::gpu::Main(); }
