// The three functions of NCCL that the loader uses. FAKE_NCCL_FAILS makes ncclGetUniqueId fail.
#include <cstdlib>
#include <cstring>

extern "C" {

struct UniqueId {
  char internal[128];
};

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}

int ncclGetUniqueId(UniqueId* id) {
  if (std::getenv("FAKE_NCCL_FAILS") != nullptr) return 3;
  static char next = 1;
  std::memset(id->internal, next++, sizeof id->internal);
  return 0;
}

const char* ncclGetLastError(void*) { return "no network interface"; }
}
