// Goal: the handlers of the CUDA platform, called as XLA calls them, put five operations into streams that give
// what the reference gives, also when captured once and replayed; failures come with the next call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "client/cuda/open_stream_group.h"
#include "client/jax/epd_jax.h"
#include "client/program/device_groups.h"
#include "kernels/routing_plan.h"
#include "tests/unit/client/cuda/stream_node.h"
#include "tests/unit/client/jax/five_sites.h"
#include "tests/unit/kernels/reference.h"

extern "C" XLA_FFI_Error* epd_jax_cuda_prepare(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_dispatch(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_combine(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_dispatch_bwd(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_combine_bwd(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_called_prepare(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_called_dispatch(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_called_combine(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_called_dispatch_bwd(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* epd_jax_cuda_called_combine_bwd(XLA_FFI_CallFrame*);

namespace epd::jax {
namespace {

using client::CudaDriver;
using client::ProcessDriver;
using client::StreamNode;
using cuda::FakeGraph;
using program::DeviceGroups;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kT = 5;
constexpr int64_t kC = StreamNode::kCapacity;
constexpr int64_t kH = StreamNode::kHidden;
constexpr int64_t kK = StreamNode::kTopK;
constexpr uint32_t kR = StreamNode::kNumRanks;

template <typename T>
struct Device {
  explicit Device(int64_t count)
      : size(static_cast<size_t>(count)),
        data(static_cast<T*>(aligned_alloc(64, (size * sizeof(T) + 127) / 64 * 64))) {
    std::fill_n(data, size, T{77});
  }
  ~Device() { free(data); }
  Device(const Device&) = delete;
  std::vector<T> Copy() const { return {data, data + size}; }
  const size_t size;
  T* const data;
};

RoutingSpec Spec() {
  RoutingSpec spec;
  spec.num_ranks = kR;
  spec.num_experts = StreamNode::kNumExperts;
  spec.top_k = kK;
  spec.alignment = 4;
  spec.max_tokens = StreamNode::kMaxTokens;
  return spec;
}

// The executable of one process: five call sites, and the buffers that XLA gave them.
struct Process {
  explicit Process(int device, int runtime = 0) : device(device) {
    sites = FiveSites({.ranks = kR,
                       .experts = StreamNode::kNumExperts,
                       .local_experts = 2,
                       .max_tokens = StreamNode::kMaxTokens,
                       .top_k = kK,
                       .alignment = 4,
                       .hidden = kH,
                       .tokens = kT,
                       .capacity = kC,
                       .plan_bytes = static_cast<int64_t>(plan.size),
                       .runtime = runtime},
                      {.topk = topk.data,
                       .tokens = tokens.data,
                       .weights = weights.data,
                       .expert_out = recv.data,
                       .expert_weights = recv_weights.data,
                       .cotangents = combined.data,
                       .counts = counts.data,
                       .total = total.data,
                       .plan = plan.data,
                       .recv = recv.data,
                       .recv_weights = recv_weights.data,
                       .combined = combined.data,
                       .grad_tokens = grad_tokens.data,
                       .grad_weights = grad_weights.data,
                       .grad_expert = grad_expert.data});
    // In a group joined by rank the operand that keeps the source's order is behind all others.
    if (device != 1) return;
    for (auto& site : sites) site->Operand(XLA_FFI_DataType_F32, nullptr, {1, kH});
  }

  Outcome Execute(void* stream) { return jax::Execute(sites, device, stream); }

  const int device;
  std::vector<std::unique_ptr<FakeSite>> sites;
  Device<int32_t> topk{kT * kK};
  Device<int32_t> counts{2};
  Device<int32_t> total{1};
  Device<uint8_t> plan{static_cast<int64_t>(RoutingPlanBytes(Spec()))};
  Device<float> tokens{kT * kH};
  Device<float> weights{kT * kK};
  Device<float> recv{kC * kH};
  Device<float> recv_weights{kC};
  Device<float> combined{kT * kH};
  Device<float> grad_tokens{kT * kH};
  Device<float> grad_weights{kT * kK};
  Device<float> grad_expert{kC * kH};
};

class CudaHandlersTest : public ::testing::Test {
 protected:
  CudaHandlersTest() {
    for (uint32_t r = 0; r < kR; ++r) {
      groups_.push_back(node_.Attach(r));
      processes_.push_back(std::make_unique<Process>(static_cast<int>(r)));
    }
    DeviceGroups::Shared().FindWith(
        [this](const epd_program_call&, int device, std::shared_ptr<client::StreamGroup>* group) {
          *group = groups_[static_cast<size_t>(device)];
          return client::Status();
        });
    for (auto& process : processes_) {
      const Outcome outcome = Load(process->sites, process->device);
      EXPECT_TRUE(outcome.ok()) << outcome.message;
    }
  }
  ~CudaHandlersTest() override {
    for (auto& process : processes_) process->sites.clear();
    for (auto& group : groups_) group->Close();
    node_.End();
    DeviceGroups::Shared().FindWith(nullptr);
  }

  void Refill(uint64_t seed) {
    std::mt19937_64 random(seed);
    problem_.num_ranks = kR;
    problem_.num_experts = StreamNode::kNumExperts;
    problem_.top_k = kK;
    problem_.alignment = 4;
    problem_.max_tokens = StreamNode::kMaxTokens;
    problem_.owner = reference::ContiguousOwners(kR, StreamNode::kNumExperts);
    problem_.topk.assign(kR, {});
    for (auto& process : processes_) {
      for (int64_t i = 0; i < kT * kK; ++i) {
        process->topk.data[i] = static_cast<int32_t>(random() % 5) - 1;
        problem_.topk[static_cast<size_t>(process->device)].push_back(process->topk.data[i]);
        process->weights.data[i] = static_cast<float>(random() % 100);
      }
      for (int64_t i = 0; i < kT * kH; ++i) {
        process->tokens.data[i] = static_cast<float>(random() % 1000);
      }
    }
  }
  void CheckOutputs() {
    std::vector<std::vector<float>> sums(kR, std::vector<float>(kT * kH));
    for (uint32_t r = 0; r < kR; ++r) {
      const reference::RecvBuffer want = reference::Recv(problem_, static_cast<int>(r));
      std::vector<float> rows(kC * kH);
      std::vector<float> weights(kC);
      for (size_t slot = 0; slot < want.slots.size(); ++slot) {
        const reference::Slot& from = want.slots[slot];
        if (from.source < 0) continue;
        const Process& source = *processes_[static_cast<size_t>(from.source)];
        weights[slot] = source.weights.data[from.token * kK + from.k];
        for (int64_t h = 0; h < kH; ++h) {
          rows[slot * kH + static_cast<size_t>(h)] = source.tokens.data[from.token * kH + h];
          sums[static_cast<size_t>(from.source)][static_cast<size_t>(from.token * kH + h)] +=
              source.tokens.data[from.token * kH + h];
        }
      }
      EXPECT_EQ(processes_[r]->recv.Copy(), rows);
      EXPECT_EQ(processes_[r]->recv_weights.Copy(), weights);
      EXPECT_EQ(*processes_[r]->total.data, static_cast<int32_t>(want.slots.size()));
    }
    for (uint32_t r = 0; r < kR; ++r) {
      EXPECT_EQ(processes_[r]->combined.Copy(), sums[r]);
      EXPECT_EQ(processes_[r]->grad_tokens.Copy(), sums[r]);
    }
  }
  void ExecuteAll() {
    for (auto& process : processes_) {
      const Outcome outcome =
          process->Execute(node_.stream(static_cast<uint32_t>(process->device)));
      ASSERT_TRUE(outcome.ok()) << outcome.message;
    }
    ASSERT_TRUE(node_.AwaitStreams());
  }

  StreamNode node_{client::Executor::kWorker};
  std::vector<std::shared_ptr<client::StreamGroup>> groups_;
  std::vector<std::unique_ptr<Process>> processes_;
  reference::Problem problem_;
};

TEST_F(CudaHandlersTest, MayBeTracedIntoCommandBuffers) {
  for (Handler* handler : {&epd_jax_cuda_prepare, &epd_jax_cuda_dispatch, &epd_jax_cuda_combine,
                           &epd_jax_cuda_dispatch_bwd, &epd_jax_cuda_combine_bwd}) {
    EXPECT_EQ(FakeSite::TraitsOf(handler), XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
  }
}

TEST_F(CudaHandlersTest, OrAreCalledAtEveryExecutionAndCounted) {
  for (Handler* handler :
       {&epd_jax_cuda_called_prepare, &epd_jax_cuda_called_dispatch, &epd_jax_cuda_called_combine,
        &epd_jax_cuda_called_dispatch_bwd, &epd_jax_cuda_called_combine_bwd}) {
    EXPECT_EQ(FakeSite::TraitsOf(handler), 0u);
  }
  const uint64_t before = epd_jax_cuda_calls();
  Refill(1);
  ExecuteAll();
  EXPECT_EQ(epd_jax_cuda_calls() - before, 5 * kR);
}

TEST_F(CudaHandlersTest, ExecutionsGiveWhatTheReferenceGives) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Refill(seed);
    ExecuteAll();
    CheckOutputs();
  }
}

TEST_F(CudaHandlersTest, ReplaysCallNoHandlerAndFailuresComeWithTheNextCall) {
  Refill(1);
  std::vector<FakeGraph::Calls> graphs;
  for (auto& process : processes_) {
    node_.graph().Begin();
    const Outcome outcome = process->Execute(node_.stream(static_cast<uint32_t>(process->device)));
    graphs.push_back(node_.graph().End());
    ASSERT_TRUE(outcome.ok()) << outcome.message;
  }
  const auto replay = [&] {
    for (uint32_t r = 0; r < kR; ++r) {
      EXPECT_EQ(FakeGraph::Replay(graphs[r], node_.stream(r)), cuda::kSuccess);
    }
    ASSERT_TRUE(node_.AwaitStreams());
  };
  for (uint64_t seed = 2; seed <= 100; ++seed) {
    Refill(seed);
    replay();
  }
  CheckOutputs();
  node_.FailMoves(absl::DataLossError("rank 1's stage is damaged"));
  replay();
  EXPECT_THAT(processes_[0]->recv.Copy(), Each(0.0f));
  node_.FailMoves(absl::OkStatus());
  for (auto& process : processes_) {
    const Outcome outcome = process->sites[0]->Execute(
        process->device, node_.stream(static_cast<uint32_t>(process->device)));
    EXPECT_EQ(outcome.code, 15);
    EXPECT_THAT(outcome.message, HasSubstr("rank 1's stage is damaged"));
  }
  ExecuteAll();
  CheckOutputs();
}

TEST_F(CudaHandlersTest, ExecutablesAndGraphsGoInAnyOrder) {
  Refill(1);
  ExecuteAll();
  groups_[0]->Close();
  processes_[1].reset();
  const Outcome outcome = processes_[0]->Execute(node_.stream(0));
  EXPECT_EQ(outcome.code, 9) << outcome.message;
  processes_.clear();
}

// As a program on a GPU that has compiled for the CPU before.
TEST_F(CudaHandlersTest, TwoRuntimesOfOneProcessKnowTheStatesOfTheHandlers) {
  for (uint32_t r = 0; r < kR; ++r) {
    processes_[r] = std::make_unique<Process>(static_cast<int>(r), 1);
    const Outcome outcome = Load(processes_[r]->sites, static_cast<int>(r));
    ASSERT_TRUE(outcome.ok()) << outcome.message;
  }
  Refill(3);
  ExecuteAll();
  CheckOutputs();
}

// There is none where these tests run, or what there is works; never a text without a reason.
TEST(ProcessDriverTest, ADriverIsThereOrAReason) {
  const CudaDriver& driver = ProcessDriver();
  EXPECT_EQ(driver.problem.empty(), driver.table.init != nullptr && driver.image != nullptr)
      << driver.problem;
}

}  // namespace
}  // namespace epd::jax
