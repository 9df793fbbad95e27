// Many groups of one process that run in turn: what staging costs then. Two ranks, both in this
// process; a run is one prepare, dispatch and combine. Command: "groups N RUNS" joins groups until
// there are N and lets them run in turn, RUNS times in all: one group that runs as often has met
// the same overlaps of an operation's end with the next one's beginning.
#include <cstdio>
#include <exception>
#include <sstream>
#include <thread>

#include "tests/bench/epd_session.h"

namespace epd::bench {
namespace {

constexpr uint32_t kRanks = 2;

class EpdGroups : public Contender {
 public:
  EpdGroups() : session_("bench epd_groups") {}

  void Load(Problem problem) override {
    if (problem.num_ranks != kRanks) throw std::runtime_error("expected a problem of 2 ranks");
    problem_ = std::move(problem);
  }

  std::string Other(const std::string& line) override {
    std::istringstream words(line);
    std::string command;
    size_t num_groups = 0;
    size_t num_runs = 0;
    words >> command >> num_groups >> num_runs;
    if (command != "groups" || num_groups == 0) return Contender::Other(line);
    while (groups_.size() < num_groups) {
      names_.push_back(
          std::make_unique<std::string>("bench-groups-" + std::to_string(groups_.size())));
      groups_.push_back(session_.Join(SpecOf(problem_, names_.back()->c_str()), {0, 1}));
    }
    for (size_t run = 0; run < num_runs; ++run) RunBothRanks(groups_[run % num_groups].get());
    return "";
  }

  void Unload() override { groups_.clear(); }
  void Run(const std::string& operation) override { Other(operation); }
  std::span<const Row16> Result(const std::string&) override { return {}; }
  std::string Versions() override { return std::string("libepd_client=") + epd_client_version(); }

 private:
  void RunBothRanks(epd_group* group) {
    std::exception_ptr failures[kRanks];
    {
      std::vector<std::jthread> threads;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            RunRank(group, rank);
          } catch (...) {
            failures[rank] = std::current_exception();
          }
        });
      }
    }
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

  // Every rank has the same tokens and routing here: only sizes matter.
  void RunRank(epd_group* group, uint32_t rank) {
    std::vector<char> plan(HandleMemSize(problem_));
    std::vector<int32_t> counts(static_cast<size_t>(problem_.num_experts));
    int32_t total = 0;
    epd_prepare_args prepare = {};
    prepare.struct_size = sizeof prepare;
    prepare.rank = rank;
    prepare.key = NamedKey("prepare");
    prepare.topk_idx = problem_.routing[rank].data();
    prepare.idx_bytes = sizeof(int32_t);
    prepare.num_tokens = static_cast<uint64_t>(problem_.num_tokens);
    prepare.top_k = static_cast<uint32_t>(problem_.top_k);
    prepare.token_counts = counts.data();
    prepare.total_recv = &total;
    prepare.handle_mem = plan.data();
    prepare.handle_mem_bytes = plan.size();
    Check([&](epd_error* error) { return epd_prepare(group, &prepare, error); });

    Rows received(static_cast<size_t>(problem_.recv_capacity * problem_.hidden));
    std::vector<float> weights(static_cast<size_t>(problem_.recv_capacity));
    epd_scatter_args dispatch = {};
    dispatch.struct_size = sizeof dispatch;
    dispatch.rank = rank;
    dispatch.key = NamedKey("dispatch");
    dispatch.handle_mem = plan.data();
    dispatch.handle_mem_bytes = plan.size();
    dispatch.top_k = prepare.top_k;
    dispatch.dtype = EPD_DTYPE_BFLOAT16;
    dispatch.hidden = static_cast<uint32_t>(problem_.hidden);
    dispatch.num_tokens = prepare.num_tokens;
    dispatch.tokens = problem_.tokens.data();
    dispatch.topk_weights = problem_.topk_weights.data();
    dispatch.recv_capacity = static_cast<uint64_t>(problem_.recv_capacity);
    dispatch.recv_tokens = received.data();
    dispatch.recv_topk_weights = weights.data();
    Check([&](epd_error* error) { return epd_dispatch(group, &dispatch, error); });

    Rows combined(static_cast<size_t>(problem_.num_tokens * problem_.hidden));
    epd_gather_args combine = {};
    combine.struct_size = sizeof combine;
    combine.rank = rank;
    combine.key = NamedKey("combine");
    combine.handle_mem = plan.data();
    combine.handle_mem_bytes = plan.size();
    combine.top_k = prepare.top_k;
    combine.dtype = EPD_DTYPE_BFLOAT16;
    combine.hidden = dispatch.hidden;
    combine.recv_capacity = dispatch.recv_capacity;
    combine.expert_rows = received.data();
    combine.num_tokens = prepare.num_tokens;
    combine.tokens = combined.data();
    Check([&](epd_error* error) { return epd_combine(group, &combine, error); });
  }

  Problem problem_;
  Session session_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<GroupPtr> groups_;
};

}  // namespace
}  // namespace epd::bench

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    epd::bench::EpdGroups contender;
    return epd::bench::ServeDriver(argv[1], /*rank=*/0, contender);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_epd_groups: %s\n", error.what());
    return 1;
  }
}
