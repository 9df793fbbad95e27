// epd through its C API, the client executor, every buffer made beforehand.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "client/c/epd_client.h"
#include "tests/bench/bench_rank.h"
#include "tests/bench/epd_session.h"

namespace epd::bench {
namespace {

class EpdC : public Contender {
 public:
  explicit EpdC(int rank) : rank_(static_cast<uint32_t>(rank)), session_("bench epd_c") {}

  void Load(Problem problem) override {
    TakeACore(problem.rank, problem.num_ranks);
    problem_ = std::move(problem);
    group_ = session_.Join(SpecOf(problem_, "bench-c"), {rank_});
    handle_mem_.resize(HandleMemSize(problem_));
    token_counts_.resize(static_cast<size_t>(problem_.num_experts));
    const auto capacity = static_cast<size_t>(problem_.recv_capacity);
    const auto hidden = static_cast<size_t>(problem_.hidden);
    received_ = Rows(capacity * hidden);
    received_weights_.assign(capacity, -1.0F);
    combined_ = Rows(static_cast<size_t>(problem_.num_tokens) * hidden);
    received_.Poison();
    combined_.Poison();
    Prepare();
    Dispatch();
    expert_out_ = ScaledByExpert(problem_, received_.data());
  }

  void Unload() override {
    group_.reset();
    for (Rows* rows : {&received_, &combined_, &expert_out_}) *rows = Rows();
    problem_ = Problem();
  }

  void Run(const std::string& operation) override {
    if (operation == "prepare") return Prepare();
    operation == "dispatch" ? Dispatch() : Combine();
  }

  std::span<const Row16> Result(const std::string& operation) override {
    if (operation == "prepare") return {};
    const Rows& result = operation == "dispatch" ? received_ : combined_;
    return {result.data(), result.size()};
  }

  std::string Versions() override { return std::string("libepd_client=") + epd_client_version(); }

 private:
  void Prepare() {
    epd_prepare_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank_;
    args.key = NamedKey("bench.prepare");
    args.topk_idx = problem_.routing[rank_].data();
    args.idx_bytes = sizeof(int32_t);
    args.num_tokens = static_cast<uint64_t>(problem_.num_tokens);
    args.top_k = static_cast<uint32_t>(problem_.top_k);
    args.token_counts = token_counts_.data();
    args.total_recv = &total_recv_;
    args.handle_mem = handle_mem_.data();
    args.handle_mem_bytes = handle_mem_.size();
    Check([&](epd_error* error) { return epd_prepare(group_.get(), &args, error); });
  }

  void Dispatch() {
    epd_scatter_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank_;
    args.key = NamedKey("bench.dispatch");
    args.handle_mem = handle_mem_.data();
    args.handle_mem_bytes = handle_mem_.size();
    args.top_k = static_cast<uint32_t>(problem_.top_k);
    args.dtype = EPD_DTYPE_BFLOAT16;
    args.hidden = static_cast<uint32_t>(problem_.hidden);
    args.num_tokens = static_cast<uint64_t>(problem_.num_tokens);
    args.tokens = problem_.tokens.data();
    args.topk_weights = problem_.topk_weights.data();
    args.recv_capacity = static_cast<uint64_t>(problem_.recv_capacity);
    args.recv_tokens = received_.data();
    args.recv_topk_weights = received_weights_.data();
    Check([&](epd_error* error) { return epd_dispatch(group_.get(), &args, error); });
  }

  void Combine() {
    epd_gather_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank_;
    args.key = NamedKey("bench.combine");
    args.handle_mem = handle_mem_.data();
    args.handle_mem_bytes = handle_mem_.size();
    args.top_k = static_cast<uint32_t>(problem_.top_k);
    args.dtype = EPD_DTYPE_BFLOAT16;
    args.hidden = static_cast<uint32_t>(problem_.hidden);
    args.recv_capacity = static_cast<uint64_t>(problem_.recv_capacity);
    args.expert_rows = expert_out_.data();
    args.num_tokens = static_cast<uint64_t>(problem_.num_tokens);
    args.tokens = combined_.data();
    Check([&](epd_error* error) { return epd_combine(group_.get(), &args, error); });
  }

  uint32_t rank_;
  Session session_;
  GroupPtr group_;
  Problem problem_;
  std::vector<char> handle_mem_;
  std::vector<int32_t> token_counts_;
  int32_t total_recv_ = 0;
  Rows received_;  // [C, H]
  std::vector<float> received_weights_;
  Rows expert_out_;
  Rows combined_;  // [T, H]
};

}  // namespace
}  // namespace epd::bench

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const int rank = std::atoi(argv[2]);
    epd::bench::EpdC contender(rank);
    return epd::bench::ServeDriver(argv[1], rank, contender);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_epd_c: %s\n", error.what());
    return 1;
  }
}
