// One rank whose calls go into a stream of its process's fake device, with buffers that are poisoned before
// each step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/cuda/stream_group.h"
#include "tests/fakes/cuda/fake_graph.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/cuda/device_bytes.h"

namespace epd::testing {

// The driver of this process, opened once from `library`, whose calls can be captured; lives as long as the
// process.
cuda::FakeGraph& DriverOf(const std::string& library);

// Not thread-safe. Destruction waits for nothing: the process ends with it.
class StreamRank {
 public:
  // `problem` is the first error's text. The rank has joined with backend=cuda, as one of `device`. A program of several
  // layers has sites for each, which all do the same with the same buffers.
  StreamRank(const std::string& library, JoinedRank& joined, const ExchangeCase& c, int device = 0,
             int num_layers = 1);
  ~StreamRank();
  std::string problem;

  // All five operations, of each layer, one behind the other in the stream, waiting only for the last; the first difference from
  // `data` in words, or the first error as "code: text", or nothing.
  std::string Step(const RankData& data);

  // Its parts: puts calls [first, last) of a step, waits for the stream, and asks for failures.
  void Load(const RankData& data);
  std::string Run(size_t first, size_t last);
  std::string Compare(const RankData& data, bool or_zeros = false) const;
  // Whether dispatch has left zeros.
  bool ReceivedNothing() const;
  static constexpr size_t kNumCalls = 5;

  // Puts each call of a step into a graph of its own; no handler, site or host code is asked again in its replays. The
  // first error's text.
  std::string Capture();
  bool captured() const { return !graphs_.empty(); }
  // As Step; a replay that fails leaves in each output what it would have given, or zeros.
  std::string Replay(const RankData& data);
  // A part of that: calls [first, last), and the wait for the stream.
  std::string Rerun(size_t first, size_t last);

  // Waits until every site speaks for a formation above `formation`. False: not in time.
  bool AwaitFormationAbove(uint64_t formation) const;
  uint64_t formation() const;

 private:
  std::array<DeviceBytes*, 14> Buffers();
  std::string AddSites(int num_layers);
  client::StreamBuffers BuffersOf(size_t call);
  std::string Await() const;

  JoinedRank& joined_;
  const ExchangeCase case_;
  const uint32_t rank_;
  cuda::FakeGraph& capturing_;
  const cuda::DriverTable& driver_;
  std::vector<cuda::FakeGraph::Calls> graphs_;  // [kNumCalls], or empty.
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<client::StreamGroup> group_;
  std::vector<std::unique_ptr<client::HeldSite>> sites_;

  DeviceBytes topk_, counts_, total_, plan_;
  DeviceBytes tokens_, weights_, recv_, recv_weights_;
  DeviceBytes expert_out_, expert_weights_, combined_;
  DeviceBytes grad_tokens_, grad_weights_, grad_recv_;
};

}  // namespace epd::testing
