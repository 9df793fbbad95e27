// Goal: of cgroup v1 and v2, the limit that counts is found wherever it stands: on the process's own group or any group above it, whatever
// part of the hierarchy is mounted here.
#include "proto/machine/cgroup_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace epd {
namespace {

using testing::IsEmpty;

constexpr uint64_t kMib = uint64_t{1} << 20;

// Files of a machine, by path.
struct Tree {
  std::map<std::string, std::string> files;

  ReadFile Reader() const {
    return [this](const std::string& path) -> std::optional<std::string> {
      const auto found = files.find(path);
      if (found == files.end()) return std::nullopt;
      return found->second;
    };
  }
  std::vector<CgroupLimit> Memory() const { return MemoryLimits(Reader()); }
  std::vector<CgroupLimit> Pids() const { return PidsLimits(Reader()); }
  std::string CountsFor(const std::vector<CgroupLimit>& limits) const {
    const auto lowest = Lowest(limits);
    return lowest.has_value() ? std::to_string(lowest->limit) + " " + lowest->file : "none";
  }
};

Tree V2(const std::string& group, const std::string& root = "/") {
  return {{{"/proc/self/cgroup", "0::" + group + "\n"},
           {"/proc/self/mountinfo",
            "23 1 0:5 / /proc rw - proc proc rw\n"
            "31 23 0:28 " +
                root + " /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"}}};
}

Tree V1(const std::string& group, const std::string& root = "/") {
  return {{{"/proc/self/cgroup", "8:pids:" + group + "\n4:cpu,memory:" + group + "\n0::/\n"},
           {"/proc/self/mountinfo",
            "35 31 0:32 " + root +
                " /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n"
                "39 31 0:36 " +
                root +
                " /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"}}};
}

TEST(CgroupLimitsTest, OfV2ItsOwnGroupAndAllAboveCount) {
  Tree tree = V2("/a/b/c");
  EXPECT_THAT(tree.Memory(), IsEmpty());
  tree.files["/sys/fs/cgroup/a/b/c/memory.max"] = "max\n";
  EXPECT_THAT(tree.Memory(), IsEmpty());
  tree.files["/sys/fs/cgroup/a/memory.max"] = "1073741824\n";
  EXPECT_EQ(tree.CountsFor(tree.Memory()), "1073741824 /sys/fs/cgroup/a/memory.max");
  tree.files["/sys/fs/cgroup/a/b/c/memory.max"] = "536870912\n";
  EXPECT_EQ(tree.CountsFor(tree.Memory()), "536870912 /sys/fs/cgroup/a/b/c/memory.max");
  tree.files["/sys/fs/cgroup/a/b/memory.high"] = "268435456\n";
  EXPECT_EQ(tree.CountsFor(tree.Memory()), "268435456 /sys/fs/cgroup/a/b/memory.high");
  tree.files["/sys/fs/cgroup/memory.max"] = "4096\n";
  EXPECT_EQ(tree.CountsFor(tree.Memory()), "4096 /sys/fs/cgroup/memory.max");
}

TEST(CgroupLimitsTest, OfV1ItsOwnGroupAndAllAboveCount) {
  Tree tree = V1("/slurm/job");
  tree.files["/sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes"] = "9223372036854771712\n";
  tree.files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n";
  EXPECT_THAT(tree.Memory(), IsEmpty()) << "the largest number is no limit";
  tree.files["/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes"] = "1073741824\n";
  EXPECT_EQ(tree.CountsFor(tree.Memory()),
            "1073741824 /sys/fs/cgroup/memory/slurm/memory.limit_in_bytes");
  tree.files["/sys/fs/cgroup/memory/slurm/memory.use_hierarchy"] = "0\n";
  EXPECT_THAT(tree.Memory(), IsEmpty()) << "an old kernel's group that is not for those below";
}

// A container sees its own group at the mount's root, and of the groups above it only the sum that the kernel gives.
TEST(CgroupLimitsTest, OfAContainerTheGroupAtTheMountsRootCounts) {
  for (const std::string own : {"/", "/docker/4f"}) {
    Tree tree = V1(own, own);
    tree.files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "536870912\n";
    EXPECT_EQ(tree.CountsFor(tree.Memory()),
              "536870912 /sys/fs/cgroup/memory/memory.limit_in_bytes");
    tree.files["/sys/fs/cgroup/memory/memory.stat"] =
        "cache 0\nhierarchical_memory_limit 268435456\n";
    EXPECT_EQ(tree.CountsFor(tree.Memory()), "268435456 /sys/fs/cgroup/memory/memory.stat");
    Tree unified = V2(own, own);
    unified.files["/sys/fs/cgroup/memory.max"] = "536870912\n";
    EXPECT_EQ(unified.CountsFor(unified.Memory()), "536870912 /sys/fs/cgroup/memory.max");
  }
}

TEST(CgroupLimitsTest, AGroupThatIsNotBelowTheMountIsLookedForAtItsRoot) {
  for (const std::string group : {"/../../other", "/kubepods/pod1", "/docker/4fa"}) {
    Tree tree = V2(group, "/docker/4f");
    tree.files["/sys/fs/cgroup/memory.max"] = "1048576\n";
    EXPECT_EQ(tree.CountsFor(tree.Memory()), "1048576 /sys/fs/cgroup/memory.max") << group;
  }
}

TEST(CgroupLimitsTest, MountsAndGroupsMayHaveAnyName) {
  Tree tree = V2("/a:b/my job");
  tree.files["/proc/self/mountinfo"] =
      "31 23 0:28 / /mnt/c\\040g rw - cgroup2 none rw\nno mount at all\n";
  tree.files["/mnt/c g/a:b/my job/memory.max"] = "8192\n";
  EXPECT_EQ(tree.CountsFor(tree.Memory()), "8192 /mnt/c g/a:b/my job/memory.max");
}

TEST(CgroupLimitsTest, WhatTheKernelCanDropIsNotInUse) {
  Tree tree = V2("/a");
  tree.files["/sys/fs/cgroup/a/memory.max"] = std::to_string(100 * kMib);
  tree.files["/sys/fs/cgroup/a/memory.current"] = std::to_string(70 * kMib);
  tree.files["/sys/fs/cgroup/a/memory.stat"] = "anon 1\ninactive_file " +
                                               std::to_string(20 * kMib) + "\nactive_file " +
                                               std::to_string(10 * kMib) + "\n";
  ASSERT_EQ(tree.Memory().size(), 1u);
  EXPECT_EQ(tree.Memory()[0].used, 40 * kMib);
  EXPECT_EQ(tree.Memory()[0].room(), 60 * kMib);
}

TEST(CgroupLimitsTest, TheLeastRoomNeedNotBeUnderTheLowestLimit) {
  Tree tree = V2("/a/b");
  tree.files["/sys/fs/cgroup/a/b/memory.max"] = "1000\n";
  tree.files["/sys/fs/cgroup/a/memory.max"] = "5000\n";
  tree.files["/sys/fs/cgroup/a/memory.current"] = "4900\n";
  EXPECT_EQ(LeastRoom(tree.Memory())->file, "/sys/fs/cgroup/a/memory.max");
  EXPECT_EQ(Lowest(tree.Memory())->file, "/sys/fs/cgroup/a/b/memory.max");
}

TEST(CgroupLimitsTest, ThreadsAreLimitedLikewise) {
  Tree one = V1("/job");
  one.files["/sys/fs/cgroup/pids/job/pids.max"] = "12\n";
  one.files["/sys/fs/cgroup/pids/job/pids.current"] = "5\n";
  EXPECT_EQ(LeastRoom(one.Pids())->room(), 7u);
  Tree two = V2("/a/b");
  two.files["/sys/fs/cgroup/a/b/pids.max"] = "max\n";
  two.files["/sys/fs/cgroup/a/pids.max"] = "99\n";
  EXPECT_EQ(two.CountsFor(two.Pids()), "99 /sys/fs/cgroup/a/pids.max");
}

TEST(CgroupLimitsTest, WithoutControlGroupsThereIsNoLimit) {
  const Tree tree;
  EXPECT_THAT(tree.Memory(), IsEmpty());
  EXPECT_FALSE(Lowest(tree.Pids()).has_value());
}

}  // namespace
}  // namespace epd
