// Goal: NCCL EP is found where its wheel puts it, whichever way epd was installed beside it, or where somebody says.
#include "daemon/backend/nccl_ep/nccl_ep_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace epd {
namespace {

using ::testing::ElementsAre;

// An environment with the wheel, which has a library for each CUDA; its site-packages.
std::filesystem::path MakeEnvironment(const std::string& name) {
  const std::filesystem::path packages =
      std::filesystem::path(testing::TempDir()) / name / "lib/python3.12/site-packages";
  for (const char* cuda : {"cu12", "cu13"}) {
    const std::filesystem::path folder = packages / "nccl/ep/lib" / cuda;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "libnccl_ep.so") << "no library";
  }
  std::filesystem::create_directories(packages / "epd/bin");
  std::filesystem::create_directories(packages / "../../../bin");
  return packages;
}

// Behind the loader's own: the CUDA of each.
std::vector<std::string> Cudas(const std::vector<std::string>& candidates) {
  std::vector<std::string> cudas;
  for (size_t i = 1; i < candidates.size(); ++i) {
    cudas.push_back(std::filesystem::path(candidates[i]).parent_path().filename());
  }
  return cudas;
}

TEST(NcclEpCandidates, TheLoadersOwnThenTheNewestOfTheWheelBesideTheInstalledPackage) {
  const std::filesystem::path packages = MakeEnvironment("installed");
  const std::vector<std::string> found = NcclEpCandidates(packages / "epd/bin/epd-worker");
  EXPECT_EQ(found.front(), "libnccl_ep.so");
  EXPECT_THAT(Cudas(found), ElementsAre("cu13", "cu12"));
}

TEST(NcclEpCandidates, TheNewestOfTheWheelOfTheEnvironmentWhoseBinItIs) {
  const std::filesystem::path packages = MakeEnvironment("developed");
  const std::vector<std::string> found = NcclEpCandidates(packages / "../../../bin/epd-worker");
  EXPECT_THAT(Cudas(found), ElementsAre("cu13", "cu12"));
}

TEST(NcclEpCandidates, TheOneThatTheEnvironmentNamesIsTheOnlyOne) {
  const std::filesystem::path packages = MakeEnvironment("named");
  setenv("EPD_LIBNCCL_EP", "/opt/libnccl_ep.so", 1);
  EXPECT_THAT(NcclEpCandidates(packages / "epd/bin/epd-worker"), ElementsAre("/opt/libnccl_ep.so"));
  unsetenv("EPD_LIBNCCL_EP");
}

}  // namespace
}  // namespace epd
