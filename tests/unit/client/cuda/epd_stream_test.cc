// Goal: a program in C puts its operations into streams of GPUs, sees their results and their failures, and is refused
// with a text where its arguments are wrong.
#include "client/cuda/epd_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/status.h"
#include "client/cuda/stream_handles.h"
#include "kernels/routing_plan.h"
#include "tests/fakes/failing_memory.h"
#include "tests/unit/client/cuda/header_in_c.h"
#include "tests/unit/client/cuda/stream_node.h"

namespace epd::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint32_t kH = StreamNode::kHidden;
constexpr uint32_t kC = StreamNode::kCapacity;
constexpr uint32_t kR = StreamNode::kNumRanks;
constexpr uint32_t kK = StreamNode::kTopK;

epd_error NewError() {
  epd_error error = {};
  error.struct_size = sizeof error;
  return error;
}

// Of the host, which the fake device reads.
template <typename T>
struct Device {
  explicit Device(size_t count) : size(count), data(static_cast<T*>(aligned_alloc(64, Bytes()))) {
    std::memset(static_cast<void*>(data), 0xcd, Bytes());
  }
  ~Device() { free(data); }
  Device(const Device&) = delete;
  size_t Bytes() const { return (size * sizeof(T) + 63) / 64 * 64 + 64; }
  std::vector<T> Copy() const { return {data, data + size}; }
  const size_t size;
  T* const data;
};

// One token to one expert of the other rank, and back.
struct Rank {
  explicit Rank(StreamNode& node, uint32_t rank)
      : streams(new epd_stream_group{node.Attach(rank)}), plan(PlanBytes()) {
    topk.data[0] = rank == 0 ? 2 : 0;
    topk.data[1] = -1;  // No route.
    for (uint32_t h = 0; h < kH; ++h) tokens.data[h] = static_cast<float>(100 * rank + h);
    weights.data[0] = static_cast<float>(rank) + 0.5f;
    weights.data[1] = 0;
  }
  static size_t PlanBytes() {
    return epd_handle_mem_size(kR, StreamNode::kNumExperts, StreamNode::kMaxTokens, kK);
  }
  static epd_stream_call Sizes() {
    epd_stream_call call = {};
    call.struct_size = sizeof call;
    call.program[0] = 9;
    call.top_k = kK;
    call.alignment = 4;
    call.num_tokens = 1;
    call.recv_capacity = kC;
    call.dtype = EPD_DTYPE_FLOAT32;
    call.hidden = kH;
    return call;
  }
  ProgramBuffers Buffers() const {
    return {plan.data,        topk.data,         counts.data,   counts.size,       total.data,
            tokens.data,      weights.data,      recv.data,     recv_weights.data, combined.data,
            grad_tokens.data, grad_weights.data, grad_recv.data};
  }

  epd_stream_group* streams;
  epd_stream_site* sites[kNumSites] = {};
  Device<uint8_t> plan;
  Device<int64_t> topk{kK};
  Device<int32_t> counts{StreamNode::kNumExperts / kR};
  Device<int32_t> total{1};
  Device<float> tokens{kH}, weights{kK}, recv{kC * kH}, recv_weights{kC};
  Device<float> combined{kH}, grad_tokens{kH}, grad_weights{kK}, grad_recv{kC * kH};
};

class EpdStreamTest : public ::testing::Test {
 protected:
  EpdStreamTest() {
    for (uint32_t r = 0; r < kR; ++r) ranks_.push_back(std::make_unique<Rank>(node_, r));
  }
  ~EpdStreamTest() override {
    for (auto& rank : ranks_) EndFromC(rank->streams, rank->sites);
    node_.End();
  }
  void AddSites() {
    for (auto& rank : ranks_) {
      epd_error error = NewError();
      const epd_stream_call sizes = Rank::Sizes();
      ASSERT_EQ(AddSitesFromC(rank->streams, &sizes, rank->sites, &error), EPD_OK) << error.message;
    }
  }
  void PutAll() {
    node_.Hold(true);
    for (uint32_t r = 0; r < kR; ++r) {
      epd_error error = NewError();
      const ProgramBuffers buffers = ranks_[r]->Buffers();
      EXPECT_EQ(PutFromC(ranks_[r]->sites, &buffers, node_.stream(r), &error), EPD_OK)
          << error.message;
    }
    node_.Hold(false);
    ASSERT_TRUE(node_.AwaitStreams());
  }

  void ExpectOutputs() const;

  StreamNode node_{Executor::kWorker};
  std::vector<std::unique_ptr<Rank>> ranks_;
};

void EpdStreamTest::ExpectOutputs() const {
  for (uint32_t r = 0; r < kR; ++r) {
    epd_error error = NewError();
    EXPECT_EQ(epd_stream_check(ranks_[r]->streams, &error), EPD_OK) << error.message;
    const std::vector<float> own = ranks_[r]->tokens.Copy();
    const std::vector<float> others = ranks_[1 - r]->tokens.Copy();
    std::vector<float> received = ranks_[r]->recv.Copy();
    EXPECT_THAT(ranks_[r]->total.Copy(), ElementsAre(4));  // One row in a zone of four slots.
    EXPECT_EQ(std::vector<float>(received.begin(), received.begin() + kH), others);
    EXPECT_EQ(ranks_[r]->recv_weights.data[0], ranks_[1 - r]->weights.data[0]);
    EXPECT_EQ(ranks_[r]->combined.Copy(), own);
    EXPECT_EQ(ranks_[r]->grad_tokens.Copy(), own);
    EXPECT_EQ(ranks_[r]->grad_weights.Copy(), ranks_[r]->weights.Copy());
    received = ranks_[r]->grad_recv.Copy();
    EXPECT_EQ(std::vector<float>(received.begin(), received.begin() + kH), others);
  }
}

TEST_F(EpdStreamTest, FiveOperationsInAStream) {
  AddSites();
  PutAll();
  ExpectOutputs();
  EXPECT_EQ(node_.num_bulk_copies(), 0u);
}

// Read when streams are opened.
struct BulkSetting {
  BulkSetting() { setenv("EPD_CUDA_BULK_ROW_BYTES", "16", /*replace=*/1); }
  ~BulkSetting() { unsetenv("EPD_CUDA_BULK_ROW_BYTES"); }
};

class EpdStreamInBulkTest : private BulkSetting, public EpdStreamTest {};

// Each rank copies the rows of four operations in and out.
TEST_F(EpdStreamInBulkTest, RowsAsLongAsTheEnvironmentSaysMoveByBulkCopies) {
  AddSites();
  PutAll();
  ExpectOutputs();
  EXPECT_EQ(node_.num_bulk_copies(), kR * 4 * 2);
}

TEST_F(EpdStreamTest, AFailureInTheStreamIsToldOnceAndLeavesZeros) {
  AddSites();
  node_.FailMoves(absl::DataLossError("a rank's plan is corrupt"));
  PutAll();
  for (auto& rank : ranks_) {
    epd_error error = NewError();
    EXPECT_EQ(epd_stream_check(rank->streams, &error), static_cast<int>(Code::kDataLoss));
    EXPECT_THAT(error.message, StartsWith("[epd:DATA_LOSS] group="));
    EXPECT_THAT(error.message, HasSubstr("corrupt"));
    EXPECT_EQ(epd_stream_check(rank->streams, &error), EPD_OK) << error.message;
    EXPECT_THAT(rank->combined.Copy(), Each(0.0f));
  }
}

TEST_F(EpdStreamTest, WhatDoesNotFitTheGroupIsRefused) {
  epd_error error = NewError();
  const auto refusal = [&](auto change) {
    epd_stream_call call = Rank::Sizes();
    call.operation = EPD_STREAM_DISPATCH;
    change(call);
    epd_stream_site* site = nullptr;
    const int code = epd_stream_add_site(ranks_[0]->streams, &call, &site, &error);
    EXPECT_EQ(site, nullptr);
    EXPECT_EQ(code, static_cast<int>(Code::kInvalidArgument));
    return std::string(error.message);
  };
  using Call = epd_stream_call;
  EXPECT_THAT(refusal([](Call& c) { c.struct_size = 0; }), HasSubstr("struct_size is 0"));
  EXPECT_THAT(refusal([](Call& c) { c.operation = static_cast<epd_stream_operation>(6); }),
              HasSubstr("operation: got 6"));
  EXPECT_THAT(refusal([](Call& c) { c.top_k = 0; }), HasSubstr("top_k: got 0"));
  EXPECT_THAT(refusal([](Call& c) { c.num_tokens = 9; }), HasSubstr("num_tokens: got 9"));
  EXPECT_THAT(refusal([](Call& c) { c.recv_capacity = kC + 1; }), HasSubstr("recv_capacity: got"));
  EXPECT_THAT(refusal([](Call& c) { c.hidden = kH + 1; }), HasSubstr("hidden: got"));
  EXPECT_THAT(refusal([](Call& c) { c.dtype = EPD_DTYPE_UNSPECIFIED; }), HasSubstr("dtype 0"));
}

TEST_F(EpdStreamTest, HandlesAndBuffersAreChecked) {
  AddSites();
  epd_error error = NewError();
  epd_stream_buffers buffers = {};
  buffers.struct_size = sizeof buffers;
  const int invalid = static_cast<int>(Code::kInvalidArgument);
  EXPECT_EQ(epd_stream_put(ranks_[0]->sites[0], &buffers, node_.stream(0), &error), invalid);
  EXPECT_THAT(error.message, HasSubstr("handle_mem: got"));
  buffers.topk_idx = ranks_[0]->topk.data;
  EXPECT_EQ(epd_stream_put(ranks_[0]->sites[0], &buffers, node_.stream(0), &error), invalid);
  EXPECT_THAT(error.message, HasSubstr("idx_bytes: got 0"));
  EXPECT_EQ(epd_stream_put(nullptr, &buffers, node_.stream(0), &error), invalid);
  EXPECT_THAT(error.message, HasSubstr("site must not be NULL"));
  EXPECT_EQ(epd_stream_check(nullptr, &error), invalid);
  epd_stream_open_args open = {};
  open.struct_size = sizeof open;
  epd_stream_group* streams = nullptr;
  EXPECT_EQ(epd_stream_open(&open, &streams, &error), invalid);
  EXPECT_THAT(error.message, HasSubstr("args.group must not be NULL"));
  EXPECT_EQ(streams, nullptr);
}

// Each allocation of a call fails once. What the call had taken by then is given back: in the end all sites are to be had.
TEST_F(EpdStreamTest, WhereverMemoryRunsOutTheFunctionReturns) {
  constexpr int kMostAllocations = 300;
  epd_stream_group* const streams = ranks_[0]->streams;
  epd_stream_site* site = nullptr;
  const auto fail_each = [&](const char* name, auto call) {
    int64_t count = 0;
    for (bool failed = true; failed && count < kMostAllocations; ++count) {
      epd_error error = NewError();
      testing::t_allocations_left = count;
      int code = 0;
      EXPECT_NO_THROW(code = call(error)) << name << ", allocation " << count;
      failed = testing::t_allocations_left < 0;
      testing::t_allocations_left = -1;
      EXPECT_NE(code, static_cast<int>(Code::kInternal)) << name << ": " << error.message;
    }
    EXPECT_LT(count, kMostAllocations) << name;
  };
  fail_each("epd_stream_open", [&](epd_error& error) {
    epd_stream_open_args open = {};
    open.struct_size = sizeof open;
    epd_stream_group* none = nullptr;
    return epd_stream_open(&open, &none, &error);
  });
  fail_each("epd_stream_check", [&](epd_error& e) { return epd_stream_check(streams, &e); });
  fail_each("epd_stream_add_site", [&](epd_error& error) {
    epd_stream_call call = Rank::Sizes();
    call.operation = EPD_STREAM_PREPARE;
    call.name = "a name that is too long to lie in the string itself";
    if (site != nullptr) epd_stream_remove_site(std::exchange(site, nullptr));
    return epd_stream_add_site(streams, &call, &site, &error);
  });
  ASSERT_NE(site, nullptr);
  fail_each("epd_stream_put", [&](epd_error& error) {
    epd_stream_buffers none = {};
    none.struct_size = sizeof none;
    return epd_stream_put(site, &none, node_.stream(0), &error);
  });
  epd_stream_remove_site(site);
  AddSites();
  PutAll();
  ExpectOutputs();
}

}  // namespace
}  // namespace epd::client
