// Goal: a driver is what is found at run time; one that is absent, old or incomplete is a reason, and
// never a crash.
#include "kernels/cuda/driver/driver_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace epd::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFake[] = "tests/fakes/cuda/libcuda.so.1";

// The library reads what to be once, so each machine is one process.
void OnMachine(const std::string& words, const std::function<void(const LoadedDriver&)>& check) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("EPD_FAKE_CUDA", words.c_str(), 1);
    check(LoadDriver(std::filesystem::absolute(kFake)));
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << words;
}

TEST(DriverTable, NoDriverIsAReason) {
  const LoadedDriver driver = LoadDriver("libcuda-of-nobody.so.1");
  EXPECT_FALSE(driver.ok());
  EXPECT_THAT(driver.problem, HasSubstr("libcuda-of-nobody.so.1"));
  EXPECT_EQ(driver.table.init, nullptr);
}

TEST(DriverTable, ALibraryThatIsNoDriverIsAReason) {
  const LoadedDriver driver = LoadDriver("libm.so.6");
  EXPECT_THAT(driver.problem, HasSubstr("older than CUDA 12.0"));
}

TEST(DriverTable, AFileThatIsNoLibraryIsAReason) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / "libcuda.so.1";
  std::ofstream(path) << "no library";
  EXPECT_THAT(LoadDriver(path).problem, HasSubstr(path));
}

TEST(DriverTable, EveryCallOfAWholeDriverIsThere) {
  OnMachine("devices=3", [](const LoadedDriver& driver) {
    EXPECT_EQ(driver.problem, "");
    EXPECT_THAT(driver.missing, IsEmpty());
    EXPECT_THAT(driver.path, EndsWith("libcuda.so.1"));
    EXPECT_TRUE(driver.table.has_virtual_memory());
    EXPECT_TRUE(driver.table.has_stream_memory_operations());
    ASSERT_EQ(driver.table.init(0), kSuccess);
    int count = 0;
    EXPECT_EQ(driver.table.device_get_count(&count), kSuccess);
    EXPECT_EQ(count, 3);
  });
}

TEST(DriverTable, WhatEpdCanDoWithoutIsNamedAndTheRestWorks) {
  OnMachine("missing=cuStreamBatchMemOp", [](const LoadedDriver& driver) {
    EXPECT_TRUE(driver.ok());
    EXPECT_THAT(driver.missing, ElementsAre("cuStreamBatchMemOp is not in this driver"));
    EXPECT_FALSE(driver.table.has_stream_memory_operations());
  });
}

TEST(DriverTable, HalfAVirtualMemoryManagementIsNone) {
  OnMachine("missing=cuMemSetAccess", [](const LoadedDriver& driver) {
    EXPECT_TRUE(driver.ok());
    EXPECT_FALSE(driver.table.has_virtual_memory());
  });
}

TEST(DriverTable, WhatEpdCannotDoWithoutIsNamed) {
  OnMachine("missing=cuLaunchKernel", [](const LoadedDriver& driver) {
    EXPECT_THAT(driver.problem, HasSubstr("cuLaunchKernel is not in this driver"));
  });
}

TEST(DriverTable, ALongListOfMissingCallsIsCutShort) {
  OnMachine("missing=all", [](const LoadedDriver& driver) {
    EXPECT_THAT(driver.problem, HasSubstr("cuInit is not in this driver"));
    EXPECT_THAT(driver.problem, EndsWith("more"));
    EXPECT_LT(driver.problem.size(), 400u);
  });
}

TEST(DriverTable, TheToolkitsStubIsNoDriver) {
  OnMachine("stub=1", [](const LoadedDriver& driver) {
    EXPECT_THAT(driver.problem, EndsWith("is the CUDA toolkit's stub, and no driver (34)"));
  });
}

TEST(DriverTable, AnErrorIsToldWithItsNameAndItsNumber) {
  OnMachine("", [](const LoadedDriver& driver) {
    EXPECT_EQ(Describe(driver.table, "cuMemCreate", kOutOfMemory),
              "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)");
    EXPECT_EQ(Describe(driver.table, "cuMemCreate", 12345), "cuMemCreate: error 12345");
  });
  EXPECT_EQ(Describe(DriverTable(), "cuInit", kNoDevice), "cuInit: error 100");
}

}  // namespace
}  // namespace epd::cuda
