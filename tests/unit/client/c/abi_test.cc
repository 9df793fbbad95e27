// Goal: libepd_client.so can be loaded into any process: it exports the C ABI and nothing else,
// needs libc and the C++ runtime only, is small, and its header is C.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "client/c/epd_client.h"

extern "C" const char* VersionFromC(void);
extern "C" int ConnectFromC(const char* path, char* message, size_t bytes);

namespace epd::client {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kLibrary[] = "client/c/libepd_client.so";

std::set<std::string> Lines(const std::string& command) {
  std::set<std::string> lines;
  FILE* pipe = popen(command.c_str(), "r");
  char line[512];
  while (pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr) {
    std::string text = line;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (!text.empty()) lines.insert(text);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return lines;
}

TEST(AbiTest, OnlyTheCInterfaceIsExported) {
  const auto symbols = Lines(std::string("nm -D --defined-only ") + kLibrary + " | cut -d' ' -f3");
  EXPECT_THAT(symbols, Each(AllOf(StartsWith("epd_"), Not(StartsWith("epd_v1_")))));
  for (const char* name :
       {"epd_client_version", "epd_connect", "epd_disconnect", "epd_check", "epd_socket_path",
        "epd_find_socket", "epd_join", "epd_leave", "epd_group_get_info", "epd_begin_execution",
        "epd_handle_mem_size", "epd_prepare", "epd_dispatch", "epd_combine",
        "epd_dispatch_backward", "epd_combine_backward", "epd_refuse"}) {
    EXPECT_THAT(symbols, Contains(name));
  }
}

TEST(AbiTest, OnlyLibcAndTheCxxRuntimeAreNeeded) {
  const auto needed =
      Lines(std::string("readelf -d ") + kLibrary + " | sed -n 's/.*NEEDED.*\\[\\(.*\\)\\]/\\1/p'");
  EXPECT_THAT(needed, Contains("libc.so.6"));
  EXPECT_THAT(needed,
              Each(MatchesRegex(
                  "(libc|libm|libdl|libpthread|libstdc\\+\\+|libgcc_s|ld-linux.*)\\.so\\.[0-9]+")));
}

TEST(AbiTest, ItIsSmallerThanOneMegabyte) {
  EXPECT_LT(std::filesystem::file_size(kLibrary), 1'000'000u);
}

TEST(AbiTest, ItStaysLoadedBecauseItsThreadRunsItsCode) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  using Version = const char* (*)();
  const auto version = reinterpret_cast<Version>(dlsym(library, "epd_client_version"));
  ASSERT_NE(version, nullptr);
  EXPECT_STREQ(version(), EPD_CLIENT_VERSION);
  dlclose(library);
  EXPECT_STREQ(version(), EPD_CLIENT_VERSION);
}

TEST(AbiTest, TheHeaderIsC) {
  EXPECT_STREQ(VersionFromC(), EPD_CLIENT_VERSION);
  char message[512] = {};
  EXPECT_EQ(ConnectFromC("/tmp/there-is-no-epd.sock", message, sizeof message), 14);
  EXPECT_THAT(message, AllOf(StartsWith("[epd:UNAVAILABLE] start one there with"),
                             HasSubstr("no epd answers; looked at")));  // Which comes last.
}

TEST(AbiTest, HandleMemSizeNeedsNoDaemonAndIsZeroForSizesThatCannotBe) {
  EXPECT_GT(epd_handle_mem_size(4, 8, 512, 4), 512u * 4 * 8);
  EXPECT_EQ(epd_handle_mem_size(0, 8, 512, 4), 0u);
  EXPECT_EQ(epd_handle_mem_size(4, 8, 512, 0), 0u);
  EXPECT_EQ(epd_handle_mem_size(UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX), 0u);
}

}  // namespace
}  // namespace epd::client
