// Ranks with the five operations in their streams, put anew or captured once, and what is to come out of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/cuda/stream_group.h"
#include "kernels/routing_plan.h"
#include "tests/unit/client/cuda/stream_node.h"
#include "tests/unit/kernels/reference.h"

namespace epd::client {

inline constexpr uint32_t kT = 6;  // Tokens of a call.
inline constexpr uint32_t kC = StreamNode::kCapacity;
inline constexpr uint32_t kH = StreamNode::kHidden;
inline constexpr uint32_t kK = StreamNode::kTopK;

template <typename T>
struct alignas(64) Device {
  explicit Device(size_t count) : size(count), data(static_cast<T*>(aligned_alloc(64, Bytes()))) {
    std::memset(data, 0xcd, Bytes());
  }
  ~Device() { free(data); }
  Device(const Device&) = delete;
  size_t Bytes() const { return (size * sizeof(T) + 63) / 64 * 64 + 64; }
  std::vector<T> Copy() const { return Copy(size); }
  std::vector<T> Copy(size_t count) const { return {data, data + count}; }
  const size_t size;
  T* const data;
};

struct Sizes {
  uint32_t tokens = kT;
  uint32_t capacity = kC;
  bool drop = false;
};

// One rank's program: prepare, dispatch, combine, and their two transposes, on buffers that stay.
class RankProgram {
 public:
  RankProgram(StreamNode& node, uint32_t rank, Sizes sizes)
      : node_(node),
        rank_(rank),
        tokens_(sizes.tokens),
        capacity_(sizes.capacity),
        group(node.Attach(rank)) {
    Add(shm::Kind::kPrepare, false);
    Add(shm::Kind::kDispatch, true);
    Add(shm::Kind::kCombine, false);
    Add(shm::Kind::kDispatchBackward, true);
    Add(shm::Kind::kCombineBackward, false);
  }

  // The whole program, into the stream or into the graph that is being captured.
  Status Put() {
    for (size_t i = 0; i < sites.size(); ++i) {
      if (Status s = group->Put(*sites[i], BuffersOf(i), node_.stream(rank_)); !s.ok()) return s;
    }
    return {};
  }

  StreamBuffers BuffersOf(size_t i) {
    StreamBuffers b;
    b.handle_mem = plan.data;
    if (i == 0) {
      b.topk_idx = topk.data;
      b.idx_bytes = 8;
      b.token_counts = counts.data;
      b.num_token_counts = counts.size;
      b.total_recv = total.data;
    } else if (i == 1) {
      b.rows = tokens.data;
      b.weights = weights.data;
      b.out_rows = recv.data;
      b.out_weights = recv_weights.data;
    } else if (i == 2) {
      b.rows = recv.data;
      b.out_rows = combined.data;
    } else if (i == 3) {
      b.rows = recv.data;
      b.weights = recv_weights.data;
      b.out_rows = grad_tokens.data;
      b.out_weights = grad_weights.data;
    } else {
      b.rows = combined.data;
      b.out_rows = grad_expert.data;
    }
    return b;
  }

  StreamNode& node_;
  const uint32_t rank_;
  const uint32_t tokens_;
  const uint32_t capacity_;  // Of the call; its buffers have room for more.
  std::shared_ptr<StreamGroup> group;
  std::vector<std::unique_ptr<HeldSite>> sites;
  Device<int64_t> topk{kT * kK};
  Device<int32_t> counts{3};  // One more than this rank has experts.
  Device<int32_t> total{1};
  Device<uint8_t> plan{RoutingPlanBytes(Spec())};
  Device<float> tokens{kT * kH};
  Device<float> weights{kT * kK};
  Device<float> recv{kC * kH};
  Device<float> recv_weights{kC};
  Device<float> combined{kT * kH};
  Device<float> grad_tokens{kT * kH};
  Device<float> grad_weights{kT * kK};
  Device<float> grad_expert{kC * kH};

  static RoutingSpec Spec() {
    RoutingSpec spec;
    spec.num_ranks = StreamNode::kNumRanks;
    spec.num_experts = StreamNode::kNumExperts;
    spec.top_k = kK;
    spec.alignment = 4;
    spec.max_tokens = StreamNode::kMaxTokens;
    return spec;
  }

 private:
  void Add(shm::Kind kind, bool has_weights) {
    StreamCall call;
    call.kind = kind;
    call.rank = rank_;
    call.program[0] = 5;
    call.ordinal = static_cast<uint32_t>(sites.size());
    call.top_k = kK;
    call.alignment = 4;
    call.num_tokens = tokens_;
    if (kind != shm::Kind::kPrepare) {
      call.recv_capacity = capacity_;
      call.dtype = 1;
      call.row_bytes = kH * 4;
      call.has_weights = has_weights;
    }
    std::unique_ptr<HeldSite> site;
    const Status status = group->AddSite(call, &site);
    EXPECT_TRUE(status.ok()) << status.message;
    sites.push_back(std::move(site));
  }
};

// Whoever moves the rows: the worker, or the ranks' own kernels.
class StreamGroupTest : public ::testing::TestWithParam<Executor> {
 protected:
  static constexpr uint32_t kR = StreamNode::kNumRanks;

  explicit StreamGroupTest(Sizes sizes = {}) : sizes_(sizes), node_(GetParam(), sizes.drop) {
    for (uint32_t r = 0; r < kR; ++r) {
      ranks_.push_back(std::make_unique<RankProgram>(node_, r, sizes));
    }
  }
  ~StreamGroupTest() override {
    for (auto& rank : ranks_) {
      if (rank == nullptr) continue;
      rank->sites.clear();
      rank->group->Close();
    }
    node_.End();
  }

  // New rows, weights and routes, the same addresses.
  void Refill(uint64_t seed) {
    std::mt19937_64 random(seed);
    problem_.num_ranks = kR;
    problem_.num_experts = StreamNode::kNumExperts;
    problem_.top_k = kK;
    problem_.alignment = 4;
    problem_.max_tokens = StreamNode::kMaxTokens;
    problem_.owner = reference::ContiguousOwners(kR, StreamNode::kNumExperts);
    problem_.topk.assign(kR, {});
    for (auto& rank : ranks_) {
      for (uint32_t i = 0; i < rank->tokens_ * kK; ++i) {
        rank->topk.data[i] = static_cast<int64_t>(random() % 5) - 1;  // -1: no route.
        problem_.topk[rank->rank_].push_back(rank->topk.data[i]);
        rank->weights.data[i] = static_cast<float>(random() % 100);
      }
      for (size_t i = 0; i < rank->tokens_ * kH; ++i) {
        rank->tokens.data[i] = static_cast<float>(random() % 1000);
      }
    }
  }

  // Every output of every rank against the reference.
  void CheckOutputs(const std::string& when) {
    std::vector<std::vector<float>> sums(kR, std::vector<float>(kT * kH));
    std::vector<std::vector<float>> back(kR, std::vector<float>(kT * kK));
    for (uint32_t r = 0; r < kR; ++r) {
      const reference::RecvBuffer want = reference::Recv(problem_, static_cast<int>(r));
      std::vector<float> rows(size_t{sizes_.capacity} * kH);
      std::vector<float> weights(sizes_.capacity);
      for (size_t slot = 0; slot < std::min<size_t>(want.slots.size(), sizes_.capacity); ++slot) {
        const reference::Slot& from = want.slots[slot];
        if (from.source < 0) continue;
        const RankProgram& source = *ranks_[static_cast<size_t>(from.source)];
        const auto token = static_cast<size_t>(from.token);
        const size_t route = token * kK + static_cast<size_t>(from.k);
        weights[slot] = source.weights.data[route];
        back[from.source][route] = weights[slot];
        for (size_t h = 0; h < kH; ++h) {
          rows[slot * kH + h] = source.tokens.data[token * kH + h];
          sums[from.source][token * kH + h] += rows[slot * kH + h];
        }
      }
      EXPECT_EQ(ranks_[r]->recv.Copy(rows.size()), rows) << when << " rank " << r;
      EXPECT_EQ(ranks_[r]->recv_weights.Copy(weights.size()), weights) << when;
      EXPECT_EQ(*ranks_[r]->total.data, static_cast<int32_t>(want.slots.size())) << when;
      EXPECT_EQ(ranks_[r]->counts.data[0], want.zone[0]) << when;
      EXPECT_EQ(ranks_[r]->counts.data[2], 0) << "entries of no expert are zeros";
    }
    for (uint32_t r = 0; r < kR; ++r) {
      EXPECT_EQ(ranks_[r]->combined.Copy(), sums[r]) << when << " rank " << r;
      EXPECT_EQ(ranks_[r]->grad_tokens.Copy(), sums[r]) << when;
      EXPECT_EQ(ranks_[r]->grad_weights.Copy(), back[r]) << when;
    }
  }
  void ExpectZeros(const std::string& when) {
    for (const auto& rank : ranks_) {
      const size_t slots = size_t{sizes_.capacity} * kH;
      EXPECT_THAT(rank->recv.Copy(slots), ::testing::Each(0.0f)) << when;
      EXPECT_THAT(rank->combined.Copy(), ::testing::Each(0.0f)) << when;
      EXPECT_THAT(rank->grad_tokens.Copy(), ::testing::Each(0.0f)) << when;
      EXPECT_THAT(rank->grad_expert.Copy(slots), ::testing::Each(0.0f)) << when;
    }
  }

  void PutAll() {
    node_.Hold(true);
    for (auto& rank : ranks_) {
      const Status status = rank->Put();
      EXPECT_TRUE(status.ok()) << status.message;
    }
    node_.Hold(false);
    ASSERT_TRUE(node_.AwaitStreams());
  }
  void Capture() {
    for (auto& rank : ranks_) {
      node_.graph().Begin();
      const Status status = rank->Put();
      graphs_.push_back(node_.graph().End());
      ASSERT_TRUE(status.ok()) << status.message;
    }
  }
  void Replay() {
    for (uint32_t r = 0; r < kR; ++r) {
      EXPECT_EQ(cuda::FakeGraph::Replay(graphs_[r], node_.stream(r)), cuda::kSuccess);
    }
    ASSERT_TRUE(node_.AwaitStreams());
  }
  Status CheckAll() {
    Status first;
    for (auto& rank : ranks_) {
      Status status = rank->group->Check();
      if (first.ok()) first = std::move(status);
    }
    return first;
  }
  const Sizes sizes_;
  StreamNode node_;
  std::vector<std::unique_ptr<RankProgram>> ranks_;
  std::vector<cuda::FakeGraph::Calls> graphs_;
  reference::Problem problem_;
};

inline const auto kExecutors = ::testing::Values(Executor::kWorker, Executor::kClient);
inline std::string NameOf(const ::testing::TestParamInfo<Executor>& one) {
  return one.param == Executor::kWorker ? "WorkerMoves" : "RanksMove";
}

}  // namespace epd::client
