// An exchange without JAX: a few processes, one rank each, route tokens to experts and back, and
// check the result.
//
//   exchange_example [--ranks=4] [--tokens=64] [--hidden=128] [--steps=10] [--worker_executor]
//
// Needs a running epd, or starts a private one as every client does. Exit code 0: every rank got
// what it expected.
//
// Each expert e multiplies its rows by e + 1. So a token x, routed to the experts e_k with the
// weights w_k, must come back as x * sum over k of w_k * (e_k + 1), which each rank can compute for
// itself.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/c/epd_client.h"

namespace {

constexpr std::chrono::minutes kLongestRun{30};
constexpr uint32_t kTopK = 2;
constexpr uint32_t kExpertsPerRank = 2;

struct Options {
  uint32_t ranks = 4;
  uint32_t tokens = 64;
  uint32_t hidden = 128;
  uint32_t steps = 10;
  bool worker_executor = false;
};

[[noreturn]] void Die(const char* what, const epd_error& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.message);
  std::exit(1);
}

// One rank: its session, its group and its buffers.
class Rank {
 public:
  Rank(const Options& options, uint32_t rank) : options_(options), rank_(rank), random_(rank + 1) {
    epd_connect_args connect = {};
    connect.struct_size = sizeof connect;
    if (epd_connect(&connect, &client_, &error_) != EPD_OK) Die("connect", error_);
    Join();
    const size_t routes = size_t{options.tokens} * kTopK;
    capacity_ = static_cast<uint32_t>(options.ranks * routes);
    experts_.resize(routes);
    weights_.resize(routes);
    tokens_.resize(size_t{options.tokens} * options.hidden);
    out_.resize(tokens_.size());
    recv_.resize(size_t{capacity_} * options.hidden);
    recv_weights_.resize(capacity_);
    zones_.resize(kExpertsPerRank);
    plan_.resize(
        epd_handle_mem_size(options.ranks, options.ranks * kExpertsPerRank, options.tokens, kTopK));
  }

  ~Rank() {
    if (epd_leave(group_, &error_) != EPD_OK) Die("leave", error_);
    epd_disconnect(client_);
  }

  // One step of a mixture-of-experts layer. Returns the largest relative error.
  float Step() {
    MakeInput();
    Prepare();
    Dispatch();
    RunExperts();
    Combine();
    return LargestError();
  }

 private:
  void Join() {
    epd_group_spec spec = {};
    spec.struct_size = sizeof spec;
    spec.name = "exchange-example";
    spec.num_ranks = options_.ranks;
    spec.num_experts = options_.ranks * kExpertsPerRank;
    spec.max_tokens_per_rank = options_.tokens;
    spec.recv_capacity_per_rank = options_.ranks * options_.tokens * kTopK;
    spec.hidden = options_.hidden;
    spec.top_k = kTopK;
    spec.max_token_dtype = EPD_DTYPE_FLOAT32;
    spec.executor = options_.worker_executor ? EPD_EXECUTOR_WORKER : EPD_EXECUTOR_DEFAULT;
    spec.form_ms = 30'000;
    epd_join_args join = {};
    join.struct_size = sizeof join;
    join.spec = &spec;
    join.ranks = &rank_;
    join.num_ranks = 1;
    if (epd_join(client_, &join, &group_, &error_) != EPD_OK) Die("join", error_);
  }

  // A name per operation is the simplest identity: the library counts its uses.
  static epd_key Named(const char* name) {
    epd_key key = {};
    key.struct_size = sizeof key;
    key.name = name;
    key.execution = EPD_EXECUTION_NEXT;
    return key;
  }

  void MakeInput() {
    std::uniform_int_distribution<int32_t> expert(
        0, static_cast<int32_t>(options_.ranks * kExpertsPerRank) - 1);
    std::uniform_real_distribution<float> value(0.5f, 1.5f);
    for (int32_t& e : experts_) e = expert(random_);
    for (float& w : weights_) w = value(random_);
    for (float& x : tokens_) x = value(random_);
  }

  void Prepare() {
    epd_prepare_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank_;
    args.key = Named("layer/prepare");
    args.topk_idx = experts_.data();
    args.idx_bytes = sizeof experts_[0];
    args.num_tokens = options_.tokens;
    args.top_k = kTopK;
    args.token_counts = zones_.data();
    args.total_recv = &total_;
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    if (epd_prepare(group_, &args, &error_) != EPD_OK) Die("prepare", error_);
  }

  void Dispatch() {
    epd_scatter_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank_;
    args.key = Named("layer/dispatch");
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    args.top_k = kTopK;
    args.dtype = EPD_DTYPE_FLOAT32;
    args.hidden = options_.hidden;
    args.num_tokens = options_.tokens;
    args.tokens = tokens_.data();
    args.topk_weights = weights_.data();
    args.recv_capacity = capacity_;
    args.recv_tokens = recv_.data();
    args.recv_topk_weights = recv_weights_.data();
    if (epd_dispatch(group_, &args, &error_) != EPD_OK) Die("dispatch", error_);
  }

  void RunExperts() {
    size_t slot = 0;
    for (uint32_t local = 0; local < kExpertsPerRank; ++local) {
      const float factor = static_cast<float>(rank_ * kExpertsPerRank + local + 1);
      for (int32_t i = 0; i < zones_[local]; ++i, ++slot) {
        float* row = &recv_[slot * options_.hidden];
        for (uint32_t h = 0; h < options_.hidden; ++h) row[h] *= factor * recv_weights_[slot];
      }
    }
  }

  void Combine() {
    epd_gather_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank_;
    args.key = Named("layer/combine");
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    args.top_k = kTopK;
    args.dtype = EPD_DTYPE_FLOAT32;
    args.hidden = options_.hidden;
    args.recv_capacity = capacity_;
    args.expert_rows = recv_.data();
    args.num_tokens = options_.tokens;
    args.tokens = out_.data();
    if (epd_combine(group_, &args, &error_) != EPD_OK) Die("combine", error_);
  }

  float LargestError() const {
    float largest = 0;
    for (size_t t = 0; t < options_.tokens; ++t) {
      float scale = 0;
      for (uint32_t k = 0; k < kTopK; ++k) {
        scale += weights_[t * kTopK + k] * static_cast<float>(experts_[t * kTopK + k] + 1);
      }
      for (uint32_t h = 0; h < options_.hidden; ++h) {
        const size_t i = t * options_.hidden + h;
        largest = std::max(largest, std::fabs(out_[i] / (tokens_[i] * scale) - 1));
      }
    }
    return largest;
  }

  const Options options_;
  const uint32_t rank_;
  std::mt19937 random_;
  epd_error error_ = {sizeof(epd_error), 0, {}};
  epd_client* client_ = nullptr;
  epd_group* group_ = nullptr;
  uint32_t capacity_ = 0;
  int32_t total_ = 0;
  std::vector<int32_t> experts_;  // [tokens, kTopK]
  std::vector<float> weights_;    // [tokens, kTopK]
  std::vector<float> tokens_;     // [tokens, hidden]
  std::vector<float> out_;        // [tokens, hidden]
  std::vector<float> recv_;       // [capacity, hidden]
  std::vector<float> recv_weights_;
  std::vector<int32_t> zones_;  // [kExpertsPerRank] lengths of the local experts' zones
  std::vector<uint8_t> plan_;
};

int RunRank(const Options& options, uint32_t rank) {
  float largest = 0;
  {
    Rank me(options, rank);
    for (uint32_t step = 0; step < options.steps; ++step) largest = std::max(largest, me.Step());
  }
  const bool good = largest < 1e-5f;
  std::printf("rank %u: %u steps, largest relative error %.1e: %s\n", rank, options.steps, largest,
              good ? "ok" : "WRONG");
  return good ? 0 : 1;
}

// How many of the children failed. Every call of the library ends by itself, so a child that is
// still there after kLongestRun hangs elsewhere; it is killed and counts as failed.
int WaitForAll(const std::vector<pid_t>& children) {
  const auto until = std::chrono::steady_clock::now() + kLongestRun;
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) kill(child, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    failed += status != 0 ? 1 : 0;
  }
  return failed;
}

bool Number(const char* argument, const char* name, uint32_t* value) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) return false;
  *value = static_cast<uint32_t>(std::strtoul(argument + length, nullptr, 10));
  return *value > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--worker_executor") == 0) {
      options.worker_executor = true;
    } else if (!Number(argv[i], "--ranks=", &options.ranks) &&
               !Number(argv[i], "--tokens=", &options.tokens) &&
               !Number(argv[i], "--hidden=", &options.hidden) &&
               !Number(argv[i], "--steps=", &options.steps)) {
      std::fprintf(stderr, "unknown argument %s; see the head of exchange_example.cc\n", argv[i]);
      return 2;
    }
  }
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) return RunRank(options, rank);
    children.push_back(child);
  }
  const int failed = WaitForAll(children);
  std::printf("%u ranks, %d failed\n", options.ranks, failed);
  return failed == 0 ? 0 : 1;
}
