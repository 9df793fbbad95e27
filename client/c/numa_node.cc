#include "client/c/numa_node.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>

namespace epd::client {
namespace {

constexpr unsigned kMaxNodes = 1024;  // As many as the kernel can be built for.
constexpr unsigned kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

bool HasSeveralNodes() {
  std::FILE* const file = std::fopen("/sys/devices/system/node/online", "re");
  if (file == nullptr) return false;
  char text[256];
  const std::size_t size = std::fread(text, 1, sizeof text, file);
  std::fclose(file);
  return AreSeveralNodes({text, size});
}

}  // namespace

bool AreSeveralNodes(std::string_view online) {
  return online.find_first_of(",-") != std::string_view::npos;
}

std::optional<unsigned> OwnNode() {
  static const bool several = HasSeveralNodes();
  unsigned cpu = 0, node = 0;
  if (!several || getcpu(&cpu, &node) != 0) return std::nullopt;
  return node;
}

bool PreferNode(void* memory, std::size_t bytes, unsigned node) {
  if (node >= kMaxNodes) return false;
  std::array<unsigned long, kMaxNodes / kBitsOfWord> nodes = {};
  nodes[node / kBitsOfWord] = 1ul << (node % kBitsOfWord);
  // The kernel takes one bit less than it is told.
  return syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.data(), kMaxNodes + 1, 0) == 0;
}

}  // namespace epd::client
