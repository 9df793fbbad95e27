#include "tests/integration/cuda/stream_rank.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "client/c/handles.h"
#include "client/cuda/open_stream_group.h"
#include "kernels/cuda/device_image.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

using client::Status;

struct Call {
  shm::Kind kind;
  bool has_weights;
};
constexpr Call kCalls[StreamRank::kNumCalls] = {{shm::Kind::kPrepare, false},
                                                {shm::Kind::kDispatch, true},
                                                {shm::Kind::kCombine, false},
                                                {shm::Kind::kDispatchBackward, true},
                                                {shm::Kind::kCombineBackward, false}};

std::string Text(const Status& status) {
  if (status.ok()) return "";
  return std::to_string(static_cast<int>(status.code)) + ": " + status.message;
}

bool AreZeros(const DeviceBytes& got) {
  const std::vector<uint8_t> bytes = got.Copy<uint8_t>();
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace

cuda::FakeGraph& DriverOf(const std::string& library) {
  static const auto* const loaded = new cuda::LoadedDriver(cuda::LoadDriver(library));
  if (!loaded->ok() || loaded->table.init(0) != cuda::kSuccess) {
    std::fprintf(stderr, "no driver that can be used: %s\n", loaded->problem.c_str());
    std::abort();
  }
  static auto* const capturing = new cuda::FakeGraph(loaded->table);
  return *capturing;
}

StreamRank::StreamRank(const std::string& library, JoinedRank& joined, const ExchangeCase& c,
                       int device, int num_layers)
    : joined_(joined),
      case_(c),
      rank_(joined.rank->rank()),
      capturing_(DriverOf(library)),
      driver_(capturing_.table()),
      topk_(size_t{c.tokens(rank_)} * c.top_k * sizeof(int64_t)),
      counts_(c.num_local_experts(rank_) * sizeof(int32_t)),
      total_(sizeof(int32_t)),
      plan_(epd_handle_mem_size(c.num_ranks, c.num_experts, c.max_tokens(), c.top_k)),
      tokens_(size_t{c.tokens(rank_)} * c.row_bytes()),
      weights_(size_t{c.tokens(rank_)} * c.top_k * sizeof(float)),
      recv_(size_t{c.recv_capacity(rank_)} * c.row_bytes()),
      recv_weights_(c.recv_capacity(rank_) * sizeof(float)),
      expert_out_(recv_.bytes),
      expert_weights_(recv_weights_.bytes),
      combined_(tokens_.bytes),
      grad_tokens_(tokens_.bytes),
      grad_weights_(weights_.bytes),
      grad_recv_(recv_.bytes) {
  cuda::Context context = nullptr;
  if (driver_.primary_context_retain(&context, device) != cuda::kSuccess ||
      driver_.context_set_current(context) != cuda::kSuccess ||
      driver_.stream_create(&stream_, cuda::kStreamNonBlocking) != cuda::kSuccess) {
    problem = "the fake device has no context and stream";
    return;
  }
  for (DeviceBytes* buffer : Buffers()) {
    if (buffer->Register(driver_) == cuda::kSuccess) continue;
    problem = "the device cannot reach the host's memory";
    return;
  }
  // Outlives the group's thread.
  static const auto* const driver = new client::CudaDriver{driver_, cuda::KernelImage().data, ""};
  const Status made =
      client::OpenStreamGroup({*joined.rank->group(), rank_, device}, *driver,
                              client::Clock::now() + std::chrono::seconds(20), &group_);
  problem = Text(made);
  if (problem.empty()) problem = AddSites(num_layers);
}

StreamRank::~StreamRank() {
  if (driver_.stream_query(stream_) == cuda::kSuccess) {
    for (DeviceBytes* buffer : Buffers()) buffer->Unregister(driver_);
  }
  sites_.clear();
  if (group_ != nullptr) group_->Close();
}

std::array<DeviceBytes*, 14> StreamRank::Buffers() {
  return {&topk_,     &counts_,      &total_,        &plan_,       &tokens_,
          &weights_,  &recv_,        &recv_weights_, &expert_out_, &expert_weights_,
          &combined_, &grad_tokens_, &grad_weights_, &grad_recv_};
}

std::string StreamRank::AddSites(int num_layers) {
  while (sites_.size() < kNumCalls * static_cast<size_t>(num_layers)) {
    const Call& one = kCalls[sites_.size() % kNumCalls];
    client::StreamCall call;
    call.kind = one.kind;
    call.rank = rank_;
    call.program[0] = 7;
    call.ordinal = static_cast<uint32_t>(sites_.size());
    call.top_k = case_.top_k;
    call.alignment = case_.alignment;
    call.num_tokens = case_.tokens(rank_);
    if (one.kind != shm::Kind::kPrepare) {
      call.recv_capacity = case_.recv_capacity(rank_);
      call.dtype = case_.dtype;
      call.row_bytes = case_.row_bytes();
      call.has_weights = one.has_weights;
    }
    std::unique_ptr<client::HeldSite> site;
    if (Status s = group_->AddSite(call, &site); !s.ok()) return Text(s);
    sites_.push_back(std::move(site));
  }
  return "";
}

client::StreamBuffers StreamRank::BuffersOf(size_t call) {
  const auto floats = [](DeviceBytes& b) { return b.On<float>(); };
  client::StreamBuffers b;
  b.handle_mem = plan_.On<uint8_t>();
  switch (kCalls[call].kind) {
    case shm::Kind::kPrepare:
      b.topk_idx = topk_.On<uint8_t>();
      b.idx_bytes = 8;
      b.token_counts = counts_.On<int32_t>();
      b.num_token_counts = case_.num_local_experts(rank_);
      b.total_recv = total_.On<int32_t>();
      break;
    case shm::Kind::kDispatch:
      b.rows = tokens_.On<uint8_t>();
      b.weights = floats(weights_);
      b.out_rows = recv_.On<uint8_t>();
      b.out_weights = floats(recv_weights_);
      break;
    case shm::Kind::kCombine:
      b.rows = expert_out_.On<uint8_t>();
      b.out_rows = combined_.On<uint8_t>();
      break;
    case shm::Kind::kDispatchBackward:
      b.rows = expert_out_.On<uint8_t>();
      b.weights = floats(expert_weights_);
      b.out_rows = grad_tokens_.On<uint8_t>();
      b.out_weights = floats(grad_weights_);
      break;
    case shm::Kind::kCombineBackward:
      b.rows = tokens_.On<uint8_t>();
      b.out_rows = grad_recv_.On<uint8_t>();
      break;
  }
  return b;
}

void StreamRank::Load(const RankData& data) {
  for (DeviceBytes* out : {&counts_, &total_, &plan_, &recv_, &recv_weights_, &combined_,
                           &grad_tokens_, &grad_weights_, &grad_recv_}) {
    out->Poison();
  }
  topk_.Fill(data.topk_idx);
  tokens_.Fill(data.tokens);
  weights_.Fill(data.topk_weights);
  expert_out_.Fill(data.expert_out);
  expert_weights_.Fill(data.expert_weights);
}

std::string StreamRank::Run(size_t first, size_t last) {
  Status status;
  for (size_t call = first; call < last && status.ok(); ++call) {
    status = group_->Put(*sites_[call], BuffersOf(call % kNumCalls), stream_);
  }
  if (std::string late = Await(); !late.empty()) return late;
  // Of calls that were put before one failed: they have ended since.
  const Status later = group_->Check();
  return Text(status.ok() ? later : status);
}

std::string StreamRank::Capture() {
  Status status;
  std::vector<cuda::FakeGraph::Calls> graphs;
  for (size_t call = 0; call < kNumCalls && status.ok(); ++call) {
    capturing_.Begin();
    status = group_->Put(*sites_[call], BuffersOf(call % kNumCalls), stream_);
    graphs.push_back(capturing_.End());
    if (status.ok() && graphs.back().empty()) return "the capture was ended";
  }
  if (status.ok()) graphs_ = std::move(graphs);
  return Text(status);
}

std::string StreamRank::Rerun(size_t first, size_t last) {
  for (size_t call = first; call < last; ++call) {
    if (cuda::FakeGraph::Replay(graphs_[call], stream_) != cuda::kSuccess) {
      return "the driver refused";
    }
  }
  return Await();
}

std::string StreamRank::Replay(const RankData& data) {
  Load(data);
  if (std::string late = Rerun(0, kNumCalls); !late.empty()) return late;
  const std::string failed = Text(group_->Check());
  const std::string difference = Compare(data, /*or_zeros=*/!failed.empty());
  if (failed.empty() || difference.empty()) return failed.empty() ? difference : failed;
  return failed + ", and left " + difference;
}

std::string StreamRank::Await() const {
  const bool idle = Eventually(kPatienceSeconds / 3,
                               [&] { return driver_.stream_query(stream_) == cuda::kSuccess; });
  return idle ? "" : "the stream does not end";
}

std::string StreamRank::Compare(const RankData& data, bool or_zeros) const {
  const auto check = [or_zeros](const char* what, const DeviceBytes& got, const auto& expected) {
    return or_zeros && AreZeros(got) ? "" : Difference(what, got, expected);
  };
  const std::string differences[] = {
      check("token_counts", counts_, data.token_counts),
      check("total_recv", total_, std::vector<int32_t>{data.total_recv}),
      check("dispatch rows", recv_, data.recv_tokens),
      check("dispatch weights", recv_weights_, data.recv_weights),
      check("combine rows", combined_, data.combined),
      check("dispatch backward rows", grad_tokens_, data.combined),
      check("dispatch backward weights", grad_weights_, data.weight_grads),
      check("combine backward rows", grad_recv_, data.recv_tokens)};
  for (const std::string& difference : differences) {
    if (!difference.empty()) return difference;
  }
  return "";
}

bool StreamRank::ReceivedNothing() const { return AreZeros(recv_) && AreZeros(recv_weights_); }

std::string StreamRank::Step(const RankData& data) {
  Load(data);
  const std::string failed = Run(0, sites_.size());
  return failed.empty() ? Compare(data) : failed;
}

uint64_t StreamRank::formation() const {
  return joined_.rank->group()->group->current()->formation;
}

bool StreamRank::AwaitFormationAbove(uint64_t formation) const {
  const shm::SlotsView& view = joined_.rank->group()->group->current()->slots[rank_]->view();
  return Eventually(kPatienceSeconds / 3, [&] {
    bool above = true;
    view.ForEachUsedSlot([&](uint32_t i) {
      if (!view.IsStreamed(i)) return;
      uint64_t& entered = view.slot(i).request.formation;
      above &= std::atomic_ref<uint64_t>(entered).load(std::memory_order_acquire) > formation;
    });
    return above;
  });
}

}  // namespace epd::testing
