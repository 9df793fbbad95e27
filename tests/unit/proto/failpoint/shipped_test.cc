// Goal: what is shipped holds no failpoint, and a build with them holds all that the table names.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace epd {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The names in the first column of the table.
std::vector<std::string> Names() {
  std::ifstream table("proto/failpoint/README.md");
  std::vector<std::string> names;
  for (std::string line; std::getline(table, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    if (name.find('.') != std::string::npos) names.push_back(name);  // Not an action.
  }
  return names;
}

TEST(ShippedTest, HoldsNoFailpoint) {
  std::string all;
  for (const char* path : {"daemon/epd", "daemon/worker/epd-worker", "client/c/libepd_client.so"}) {
    all += Read(path);
  }
  ASSERT_GT(all.size(), 1u << 20);
#ifdef EPD_FAILPOINTS
  constexpr bool kExpected = true;
#else
  constexpr bool kExpected = false;
#endif
  const std::vector<std::string> names = Names();
  ASSERT_GE(names.size(), 60u);
  for (const std::string& name : names) {
    EXPECT_EQ(all.find('\0' + name + '\0') != std::string::npos, kExpected) << name;
  }
  EXPECT_EQ(all.find("EPD_FAILPOINTS_FILE") != std::string::npos, kExpected);
}

}  // namespace
}  // namespace epd
