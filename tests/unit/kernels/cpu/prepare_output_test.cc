// Goal: preparing an output asks for huge pages inside it and nowhere else, and never changes a
// byte.
#include "kernels/prepare_output.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace epd {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

// Whether the mapping that holds `address` was advised to use huge pages ("hg" in VmFlags).
bool IsAdvised(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::string line;
  bool inside = false;
  while (std::getline(smaps, line)) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

class PrepareOutputTest : public testing::Test {
 protected:
  PrepareOutputTest() {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::uint8_t*>(memory);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    aligned_ = memory_ + (kHugePage - address % kHugePage) % kHugePage;
  }
  ~PrepareOutputTest() override { munmap(memory_, kBytes); }

  static constexpr std::size_t kBytes = 20 * kHugePage;
  std::uint8_t* memory_ = nullptr;
  std::uint8_t* aligned_ = nullptr;  // first multiple of a huge page
};

TEST_F(PrepareOutputTest, AdvisesWholeHugePagesInsideOnly) {
  PrepareOutput(aligned_ + 4096, 17 * kHugePage);
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
  EXPECT_FALSE(IsAdvised(aligned_ + 4096));
  EXPECT_TRUE(IsAdvised(aligned_ + kHugePage));
  EXPECT_TRUE(IsAdvised(aligned_ + 17 * kHugePage - 1));
  EXPECT_FALSE(IsAdvised(aligned_ + 17 * kHugePage));
}

TEST_F(PrepareOutputTest, LeavesSmallBuffersAlone) {
  PrepareOutput(aligned_, 15 * kHugePage);
  EXPECT_FALSE(IsAdvised(aligned_));
  PrepareOutput(nullptr, 0);
}

TEST_F(PrepareOutputTest, KeepsContents) {
  std::memset(memory_, 0x5a, kBytes);
  PrepareOutput(memory_, kBytes);
  EXPECT_EQ(std::vector<std::uint8_t>(memory_, memory_ + kBytes),
            std::vector<std::uint8_t>(kBytes, 0x5a));
}

}  // namespace
}  // namespace epd
