// A libnccl_ep.so that ends its process in one of the ways in which the real one does.
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

void EndAsAsked() {
  const char* how = std::getenv("EPD_FAKE_NCCL_EP");
  const std::string asked = how == nullptr ? "" : how;
  // With a marker, only once for each time that somebody makes it.
  const char* marker = std::getenv("EPD_FAKE_NCCL_EP_ONCE");
  if (marker != nullptr && unlink(marker) != 0) return;
  if (asked == "exit") std::exit(EXIT_FAILURE);
  if (asked == "abort") std::abort();
  if (asked == "throw") throw std::runtime_error("EPException: a fake assertion");
  while (asked == "hang") pause();
}

}  // namespace

extern "C" int ncclEpGetVersion(int* version) {
  EndAsAsked();
  const char* how = std::getenv("EPD_FAKE_NCCL_EP");
  *version = how != nullptr && std::string(how) == "old" ? 100 : 200;
  return 0;
}
