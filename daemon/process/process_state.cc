#include "daemon/process/process_state.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace epd {

// "PID (NAME) STATE ...", where the name may have anything in it.
bool WaitsInKernel(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_ends = text.rfind(") ");
  return name_ends != std::string::npos && text.compare(name_ends + 2, 2, "D ") == 0;
}

}  // namespace epd
