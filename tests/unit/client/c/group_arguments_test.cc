// Goal: where the rows of a group lie follows from where its ranks say they are, and what does not fit is named.
#include "client/c/group_arguments.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Of ranks 4, 5, ... that are on `devices`.
Status Read(const char* backend, const std::vector<const char*>& devices, Join* join) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.name = "g";
  spec.backend = backend;
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < devices.size(); ++i) ranks.push_back(4 + i);
  epd_join_args args = {};
  args.struct_size = sizeof args;
  args.spec = &spec;
  args.ranks = ranks.data();
  args.num_ranks = ranks.size();
  args.devices = devices.data();
  epd_plans plans;
  return ReadJoin(&args, join, &plans);
}

std::string BackendOf(const char* backend, const std::vector<const char*>& devices) {
  Join join;
  const Status read = Read(backend, devices, &join);
  return read.ok() ? join.spec.backend : read.message;
}

TEST(GroupArgumentsTest, AGroupOfRanksOnGpusIsOneOfGpusUnlessItAsksForAnother) {
  for (const char* open : {static_cast<const char*>(nullptr), "", "auto"}) {
    EXPECT_EQ(BackendOf(open, {"cuda:0"}), "cuda");
    EXPECT_EQ(BackendOf(open, {"cuda:1", "GPU-0a1b2c3d", "MIG-0a1b"}), "cuda");
  }
  EXPECT_EQ(BackendOf("cpu", {"cuda:0"}), "cpu");
  EXPECT_EQ(BackendOf("nccl_ep", {"cuda:0"}), "nccl_ep");
}

TEST(GroupArgumentsTest, OtherWordsAreForPeople) {
  EXPECT_EQ(BackendOf(nullptr, {""}), "auto");
  EXPECT_EQ(BackendOf(nullptr, {"TFRT_CPU_0", nullptr}), "auto");
  EXPECT_EQ(BackendOf("cuda", {"", "cuda:0"}), "cuda");
}

TEST(GroupArgumentsTest, SomeRanksOnGpusAreRefusedByName) {
  EXPECT_THAT(BackendOf(nullptr, {"", "cuda:0"}),
              AllOf(HasSubstr("rank 5 is on cuda:0"), HasSubstr("rank 4 names no GPU (\"\")"),
                    HasSubstr("backend=cpu")));
  EXPECT_THAT(BackendOf("auto", {"cuda:1", "socket-0"}), HasSubstr("(\"socket-0\")"));
}

}  // namespace
}  // namespace epd::client
