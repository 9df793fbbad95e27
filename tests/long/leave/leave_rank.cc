// Some ranks of a group, all of one process, which again and again attach, join, dispatch rows, leave and end their session, as a
// program does that finalizes its last group.
//
//   leave_rank GROUP RANKS FIRST COUNT ROUNDS
//
// COUNT ranks from FIRST on. Says "ROUNDS rounds" when it has done them, and lives on until its input ends.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <thread>

#include "tests/bench/epd_session.h"

namespace epd::leave {
namespace {

using bench::Check;

constexpr uint32_t kTokens = 512;
constexpr uint32_t kHidden = 256;
constexpr uint32_t kTopK = 2;

struct Arguments {
  const char* group = nullptr;
  uint32_t num_ranks = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  int rounds = 0;
};

epd_group_spec SpecOf(const Arguments& arguments) {
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.name = arguments.group;
  spec.num_ranks = arguments.num_ranks;
  spec.num_experts = arguments.num_ranks;
  spec.max_tokens_per_rank = kTokens;
  spec.recv_capacity_per_rank = kTokens * kTopK * arguments.num_ranks;
  spec.hidden = kHidden;
  spec.top_k = kTopK;
  spec.max_token_dtype = EPD_DTYPE_FLOAT32;
  return spec;
}

// What one rank calls in a round.
class Rank {
 public:
  Rank(const Arguments& arguments, uint32_t rank)
      : num_ranks_(arguments.num_ranks),
        rank_(rank),
        routes_(size_t{kTokens} * kTopK),
        counts_(num_ranks_),
        plan_(epd_handle_mem_size(num_ranks_, num_ranks_, kTokens, kTopK)),
        received_(size_t{Capacity()} * kHidden),
        received_weights_(Capacity()) {
    for (size_t i = 0; i < routes_.size(); ++i)
      routes_[i] = static_cast<int32_t>((i + rank_) % num_ranks_);
  }

  void Call(epd_group* group) {
    epd_prepare_args prepare = {};
    prepare.struct_size = sizeof prepare;
    prepare.rank = rank_;
    prepare.key = bench::NamedKey("prepare");
    prepare.topk_idx = routes_.data();
    prepare.idx_bytes = sizeof(int32_t);
    prepare.num_tokens = kTokens;
    prepare.top_k = kTopK;
    prepare.token_counts = counts_.data();
    prepare.total_recv = &total_;
    prepare.handle_mem = plan_.data();
    prepare.handle_mem_bytes = plan_.size();
    Check([&](epd_error* error) { return epd_prepare(group, &prepare, error); });
    epd_scatter_args dispatch = {};
    dispatch.struct_size = sizeof dispatch;
    dispatch.rank = rank_;
    dispatch.key = bench::NamedKey("dispatch");
    dispatch.handle_mem = plan_.data();
    dispatch.handle_mem_bytes = plan_.size();
    dispatch.top_k = kTopK;
    dispatch.dtype = EPD_DTYPE_FLOAT32;
    dispatch.hidden = kHidden;
    dispatch.num_tokens = kTokens;
    dispatch.tokens = tokens_.data();
    dispatch.topk_weights = weights_.data();
    dispatch.recv_capacity = Capacity();
    dispatch.recv_tokens = received_.data();
    dispatch.recv_topk_weights = received_weights_.data();
    Check([&](epd_error* error) { return epd_dispatch(group, &dispatch, error); });
  }

 private:
  uint32_t Capacity() const { return kTokens * kTopK * num_ranks_; }

  const uint32_t num_ranks_;
  const uint32_t rank_;
  std::vector<int32_t> routes_, counts_;
  std::vector<char> plan_;
  std::vector<float> tokens_ = std::vector<float>(size_t{kTokens} * kHidden, 1);
  std::vector<float> weights_ = std::vector<float>(size_t{kTokens} * kTopK, 1);
  std::vector<float> received_, received_weights_;
  int32_t total_ = 0;
};

void Main(const Arguments& arguments) {
  std::vector<uint32_t> numbers;
  std::vector<Rank> ranks;
  for (uint32_t rank = arguments.first; rank < arguments.first + arguments.count; ++rank) {
    numbers.push_back(rank);
    ranks.emplace_back(arguments, rank);
  }
  for (int round = 0; round < arguments.rounds; ++round) {
    bench::Session session("leave");
    const bench::GroupPtr group = session.Join(SpecOf(arguments), numbers);
    std::mutex mutex;
    std::exception_ptr failure;
    {
      std::vector<std::jthread> threads;
      for (Rank& rank : ranks) {
        threads.emplace_back([&] {
          try {
            rank.Call(group.get());
          } catch (...) {
            const std::lock_guard lock(mutex);
            failure = std::current_exception();
          }
        });
      }
    }
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace
}  // namespace epd::leave

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: leave_rank GROUP RANKS FIRST COUNT ROUNDS\n");
    return 2;
  }
  const auto number = [&](int i) {
    return static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10));
  };
  try {
    epd::leave::Main({argv[1], number(2), number(3), number(4), static_cast<int>(number(5))});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "leave_rank: group=%s rank=%s: %s\n", argv[1], argv[3], error.what());
    return 1;
  }
  std::printf("%s rounds\n", argv[5]);
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  return 0;
}
