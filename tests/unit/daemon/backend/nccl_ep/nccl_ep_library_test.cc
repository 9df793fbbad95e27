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

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// An environment with the wheel, which has a library for each CUDA; its site-packages.
std::filesystem::path MakeEnvironment(const std::string& name,
                                      const std::string& file = "libnccl_ep.so") {
  const std::filesystem::path packages =
      std::filesystem::path(testing::TempDir()) / name / "lib/python3.12/site-packages";
  for (const char* cuda : {"cu12", "cu13"}) {
    const std::filesystem::path folder = packages / "nccl/ep/lib" / cuda;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / file) << "no library";
  }
  std::filesystem::create_directories(packages / "epd/bin");
  std::filesystem::create_directories(packages / "../../../bin");
  return packages;
}

// Behind the loader's own two: the CUDA of each.
std::vector<std::string> Cudas(const std::vector<std::string>& candidates) {
  std::vector<std::string> cudas;
  for (size_t i = 2; i < candidates.size(); ++i) {
    cudas.push_back(std::filesystem::path(candidates[i]).parent_path().filename());
  }
  return cudas;
}

TEST(NcclEpCandidates, TheLoadersOwnThenTheNewestOfTheWheelBesideTheInstalledPackage) {
  const std::filesystem::path packages = MakeEnvironment("installed");
  const std::vector<std::string> found = NcclEpCandidates(packages / "epd/bin/epd-worker");
  EXPECT_EQ(found[0], "libnccl_ep.so");
  EXPECT_EQ(found[1], "libnccl_ep.so.0");
  EXPECT_THAT(Cudas(found), ElementsAre("cu13", "cu12"));
}

TEST(NcclEpCandidates, AWheelThatHasTheSonameAlone) {
  const std::filesystem::path packages = MakeEnvironment("soname", "libnccl_ep.so.0");
  std::ofstream(packages / "nccl/ep/lib/libnccl_ep.so.0") << "of one CUDA alone";
  const std::vector<std::string> found = NcclEpCandidates(packages / "epd/bin/epd-worker");
  EXPECT_THAT(Cudas(found), ElementsAre("cu13", "cu12", "lib"));
  EXPECT_THAT(found, Each(HasSubstr("libnccl_ep.so")));
  EXPECT_THAT(found.back(), EndsWith("nccl/ep/lib/libnccl_ep.so.0"));
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

TEST(NcclEpHeaderAbi, IsThatOfTheHeaderInstalledWithTheLibraryWhereverALinkToItLies) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "built";
  for (const char* folder : {"lib/cu13", "include", "elsewhere/lib"}) {
    std::filesystem::create_directories(root / folder);
  }
  std::ofstream(root / "lib/libnccl_ep.so.0") << "a build of the source";
  std::ofstream(root / "lib/cu13/libnccl_ep.so") << "as in a wheel";
  std::filesystem::remove(root / "elsewhere/lib/libnccl_ep.so");
  std::filesystem::create_symlink(root / "lib/libnccl_ep.so.0",
                                  root / "elsewhere/lib/libnccl_ep.so");
  EXPECT_EQ(NcclEpHeaderAbi(root / "lib/libnccl_ep.so.0"), 0) << "there is no header";
  EXPECT_EQ(NcclEpHeaderAbi(root / "none.so"), 0);
  for (const int abi : {1, 2}) {
    std::ofstream(root / "include/nccl_ep.h")
        << "#define NCCL_EP_MINOR 1\n#define NCCL_EP_API_VERSION " << abi << "\n";
    for (const char* path :
         {"lib/libnccl_ep.so.0", "lib/cu13/libnccl_ep.so", "elsewhere/lib/libnccl_ep.so"}) {
      EXPECT_EQ(NcclEpHeaderAbi(root / path), abi) << path;
    }
  }
}

}  // namespace
}  // namespace epd
