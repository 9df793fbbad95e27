// Goal: memory that is shared gets a NUMA node to prefer, which the kernel then names; a machine of one node is told from others.
#include "client/c/numa_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace epd::client {
namespace {

using ::testing::HasSubstr;

TEST(NumaNodeTest, OneNodeIsToldFromSeveral) {
  for (const char* one : {"", "0", "0\n", "3\n"}) EXPECT_FALSE(AreSeveralNodes(one)) << one;
  for (const char* several : {"0-1", "0,2\n", "0-3,8"}) EXPECT_TRUE(AreSeveralNodes(several));
}

// The kernel's line about the mapping that begins at `memory`.
std::string PolicyOf(const void* memory) {
  std::ostringstream address;
  address << std::hex << reinterpret_cast<uintptr_t>(memory) << ' ';
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(address.str()) == 0 || line.find(address.str()) == line.find_first_not_of('0'))
      return line;
  }
  return "";
}

TEST(NumaNodeTest, SharedMemoryPrefersTheNode) {
  const size_t bytes = 4 * static_cast<size_t>(getpagesize());
  const int fd = memfd_create("pages", 0);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(memory, MAP_FAILED);
  // Node 0 is there wherever nodes are known; a sandbox may take no such advice.
  if (PreferNode(memory, bytes, 0)) {
    EXPECT_THAT(PolicyOf(memory), HasSubstr("prefer"));
  }
  EXPECT_FALSE(PreferNode(memory, bytes, 100'000)) << "no such node";
  munmap(memory, bytes);
  close(fd);
}

}  // namespace
}  // namespace epd::client
