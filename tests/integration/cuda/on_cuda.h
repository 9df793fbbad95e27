// What the tests of groups on the fake driver's devices share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/cuda/fake_gpu.h"

namespace epd::testing {

inline const JoinOptions kOnCuda = {.group = "gpu", .backend = "cuda", .device = "cuda:0"};

// No call of any process breaks a rule of the driver or of NCCL.
class OnFakeGpu : public ::testing::Test {
 protected:
  ~OnFakeGpu() override { EXPECT_EQ(gpu_.Violations(), ""); }

  const FakeGpu gpu_;
};

// Ranks are on a node's devices in turns, so that neighbours have different workers.
JoinOptions OnOneOf(uint32_t num_devices, uint32_t rank);
inline JoinOptions OnEither(uint32_t rank) { return OnOneOf(2, rank); }

// Two steps, then leaves. "" or what went wrong.
std::string RunTwice(JoinedRank& joined, Link& link);

// Says "ran" after the first exchange; exchanges until it hears a word, or a peer that did has left. All
// are good, and in one epoch. "" or what went wrong.
std::string RunUntilTold(JoinedRank& joined, Link& link);

// Exchanges until one fails, and then until one is good again, in a later epoch unless a rank alone was lost. The first
// failure's text. That takes a minute at most.
std::function<std::string(JoinedRank&, Link&)> FailAndRecover(bool in_new_epoch = true);

}  // namespace epd::testing
