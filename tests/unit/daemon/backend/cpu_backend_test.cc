// Goal: the CPU backend takes the level it is told and says which; it needs no communicator but
// refuses what cannot be a unique id.
#include "daemon/backend/cpu/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using ::testing::HasSubstr;

TEST(CpuBackend, TakesAForcedLevelAndSaysSo) {
  EXPECT_EQ(CpuBackend::Create("scalar").value()->simd(), "scalar");
  EXPECT_FALSE(CpuBackend::Create("auto").value()->simd().empty());
}

TEST(CpuBackend, RefusesAnUnknownLevelByName) {
  const absl::Status status = CpuBackend::Create("sse9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sse9"));
}

TEST(CpuBackend, TakesAUniqueIdOrNoneAndNothingElse) {
  const auto backend = CpuBackend::Create("auto").value();
  EXPECT_TRUE(backend->InitCommunicator(7, 1, "").ok());
  EXPECT_TRUE(backend->InitCommunicator(7, 1, std::string(128, 'x')).ok());
  const absl::Status status = backend->InitCommunicator(7, 1, "SECRET");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().find("SECRET"), absl::string_view::npos) << "a unique id was shown";
}

}  // namespace
}  // namespace epd
