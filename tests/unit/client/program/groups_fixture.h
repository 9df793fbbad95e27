// Groups over the stand-in for the C library: what a process asks for, and calls of its programs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/program/groups.h"
#include "tests/unit/client/program/fake_epd_client.h"

namespace epd::program {

// What a process asks for.
struct Asked {
  Asked() {
    spec.struct_size = sizeof spec;
    spec.num_ranks = 2;
    spec.num_experts = 4;
    spec.max_tokens_per_rank = 16;
    spec.recv_capacity_per_rank = 64;
    spec.hidden = 8;
    group.struct_size = sizeof group;
    group.alias = "default";
    group.job = "job";
    group.reconnect_timeout_ms = -1;  // Losses are seen at once.
    Hold({{0, 0, "cpu:0"}, {0, 1, "cpu:1"}, {1, 0, "cpu:2"}});
  }
  struct Rank {
    std::uint32_t domain, position;
    const char* device;
  };
  static std::vector<epd_program_rank> RanksOf(const std::vector<Rank>& ranks) {
    std::vector<epd_program_rank> all;
    for (const auto& [domain, position, device] : ranks) {
      all.push_back({sizeof(epd_program_rank), domain, position, device});
    }
    return all;
  }
  void Hold(const std::vector<Rank>& ranks) {
    held = RanksOf(ranks);
    group.held = held.data();
    group.num_held = held.size();
  }
  std::shared_ptr<const GroupConfig> Read() {
    group.spec = &spec;
    std::shared_ptr<const GroupConfig> config;
    EXPECT_TRUE(GroupConfig::Read(&group, &config).ok());
    return config;
  }

  epd_group_spec spec = {};
  epd_program_group group = {};
  std::vector<epd_program_rank> held;
};

// A call of a program of its own, which was traced for the group above.
struct Site {
  explicit Site(std::int64_t hidden = 8) {
    static std::uint64_t executables = 0;
    sizes.struct_size = sizeof sizes;
    sizes.ranks = 2;
    sizes.experts = 4;
    sizes.max_tokens = 16;
    sizes.hidden = hidden;
    sizes.recv_capacity = 64;
    executable = ++executables;
  }
  epd_program_call At(std::uint64_t run_id, std::int32_t domain = 0, std::int32_t rank = 0) const {
    epd_program_call call = {};
    call.struct_size = sizeof call;
    call.alias = "default";
    call.domain = domain;
    call.position = rank;
    call.executable = executable;
    call.execution = run_id;
    call.traced = &sizes;
    return call;
  }
  epd_program_sizes sizes = {};
  std::uint64_t executable;
};

class GroupsTest : public testing::Test {
 protected:
  GroupsTest() { fake::Reset(); }
  ~GroupsTest() override {
    groups_.Finalize("default");
    EXPECT_EQ(fake::num_groups(), 0);
    EXPECT_EQ(fake::num_sessions(), 0);
  }

  // Begins and ends a call that reports `result`; returns the status of the begin.
  Status Call(const Site& site, std::uint64_t run_id, const Status& result = {},
              std::int32_t domain = 0, std::int32_t rank = 0) {
    ActiveCall call;
    const Status status = Begin(site.At(run_id, domain, rank), &call);
    if (!status.ok()) return status;
    last_ = call.number();
    const Status refusal = call.refusal();
    call.End(refusal.ok() ? result : refusal);
    return refusal;
  }

  Status Begin(const epd_program_call& call, ActiveCall* active) {
    std::optional<ActiveCall> begun;
    const Status status = groups_.Begin(call, /*may_wait=*/true, &begun);
    EXPECT_EQ(status.ok(), begun.has_value());
    if (begun) *active = *std::move(begun);
    return status;
  }

  Groups groups_;
  CallNumber last_;
};

}  // namespace epd::program
