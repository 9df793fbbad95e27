// One rank of every group, each by a session and a thread of its own, which dispatches small rows and combines them again,
// paced, until its time is over; every sum is compared.
//
//   load_rank RANK RANKS GROUPS OPERATIONS SECONDS FILE
//
// OPERATIONS: of all groups together, a second; 0: as many as there can be. SECONDS: 0: joins, and exchanges nothing until
// its input ends. Says "ready" once all groups are joined, and waits for a line. FILE: a line per call, "SECOND MICROSECONDS".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>

#include "tests/bench/epd_session.h"

namespace epd::load {
namespace {

using bench::Check;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kTokens = 8;
constexpr uint32_t kHidden = 256;
constexpr uint32_t kTopK = 2;

struct Arguments {
  uint32_t rank = 0;
  uint32_t num_ranks = 0;
  int num_groups = 0;
  double operations_per_second = 0;
  double seconds = 0;
  const char* file = nullptr;
};

struct Sample {
  double second = 0;
  double microseconds = 0;
};

class Member {
 public:
  Member(const Arguments& arguments, int number)
      : arguments_(arguments),
        name_("load-" + std::to_string(number)),
        session_("load"),
        group_(session_.Join(Spec(), {arguments.rank})) {
    for (uint32_t i = 0; i < kTokens * kTopK; ++i) {
      routes_.push_back(static_cast<int32_t>((i + arguments.rank) % arguments.num_ranks));
    }
    Prepare();
  }

  // Dispatches and combines in turn, a call each period.
  void Run(Clock::time_point start) {
    const double each = arguments_.operations_per_second == 0
                            ? 0
                            : arguments_.num_groups / arguments_.operations_per_second;
    for (uint64_t n = 0;; ++n) {
      const auto due = start + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(each * static_cast<double>(n)));
      std::this_thread::sleep_until(due);
      // All ranks count alike, so all of a group end with the same call.
      if (each > 0 ? each * static_cast<double>(n) >= arguments_.seconds : IsOver(start, n)) return;
      const auto began = Clock::now();
      n % 2 == 0 ? Dispatch() : Combine(n);
      const auto ended = Clock::now();
      samples_.push_back({std::chrono::duration<double>(began - start).count(),
                          std::chrono::duration<double, std::micro>(ended - began).count()});
    }
  }

  const std::vector<Sample>& samples() const { return samples_; }

 private:
  epd_group_spec Spec() const {
    epd_group_spec spec = {};
    spec.struct_size = sizeof spec;
    spec.name = name_.c_str();
    spec.num_ranks = arguments_.num_ranks;
    spec.num_experts = arguments_.num_ranks;
    spec.max_tokens_per_rank = kTokens;
    spec.recv_capacity_per_rank = Capacity();
    spec.hidden = kHidden;
    spec.top_k = kTopK;
    spec.max_token_dtype = EPD_DTYPE_FLOAT32;
    return spec;
  }
  uint32_t Capacity() const { return kTokens * kTopK * arguments_.num_ranks; }

  // Without a pace ranks cannot count alike: rank 0 says in its rows that this pair is the last.
  bool IsOver(Clock::time_point start, uint64_t n) {
    if (n % 2 == 1) return false;
    if (last_) return true;
    if (arguments_.rank == 0) {
      says_last_ =
          std::chrono::duration<double>(Clock::now() - start).count() >= arguments_.seconds;
    }
    return false;
  }

  void Prepare() {
    plan_.resize(epd_handle_mem_size(arguments_.num_ranks, arguments_.num_ranks, kTokens, kTopK));
    counts_.resize(arguments_.num_ranks);
    epd_prepare_args args = {};
    args.struct_size = sizeof args;
    args.rank = arguments_.rank;
    args.key = bench::NamedKey("prepare");
    args.topk_idx = routes_.data();
    args.idx_bytes = sizeof(int32_t);
    args.num_tokens = kTokens;
    args.top_k = kTopK;
    args.token_counts = counts_.data();
    args.total_recv = &total_;
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    Check([&](epd_error* error) { return epd_prepare(group_.get(), &args, error); });
  }

  void Dispatch() {
    tokens_.assign(size_t{kTokens} * kHidden, says_last_ ? kLast : kGoesOn);
    received_.assign(size_t{Capacity()} * kHidden, 0);
    epd_scatter_args args = {};
    args.struct_size = sizeof args;
    args.rank = arguments_.rank;
    args.key = bench::NamedKey("dispatch");
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    args.top_k = kTopK;
    args.dtype = EPD_DTYPE_FLOAT32;
    args.hidden = kHidden;
    args.num_tokens = kTokens;
    args.tokens = tokens_.data();
    args.topk_weights = weights_.data();
    args.recv_capacity = Capacity();
    args.recv_tokens = received_.data();
    args.recv_topk_weights = received_weights_.data();
    Check([&](epd_error* error) { return epd_dispatch(group_.get(), &args, error); });
    for (const float value : received_) last_ |= value == kLast;
  }

  void Combine(uint64_t n) {
    combined_.assign(size_t{kTokens} * kHidden, 0);
    epd_gather_args args = {};
    args.struct_size = sizeof args;
    args.rank = arguments_.rank;
    args.key = bench::NamedKey("combine");
    args.handle_mem = plan_.data();
    args.handle_mem_bytes = plan_.size();
    args.top_k = kTopK;
    args.dtype = EPD_DTYPE_FLOAT32;
    args.hidden = kHidden;
    args.recv_capacity = Capacity();
    args.expert_rows = received_.data();
    args.num_tokens = kTokens;
    args.tokens = combined_.data();
    Check([&](epd_error* error) { return epd_combine(group_.get(), &args, error); });
    for (size_t i = 0; i < combined_.size(); ++i) {
      if (combined_[i] == kTopK * tokens_[i]) continue;
      throw std::runtime_error(name_ + " call " + std::to_string(n) + ": value " +
                               std::to_string(i) + " is " + std::to_string(combined_[i]) +
                               ", not " + std::to_string(kTopK * tokens_[i]));
    }
  }

  static constexpr float kGoesOn = 3;
  static constexpr float kLast = 5;

  const Arguments arguments_;
  const std::string name_;
  bench::Session session_;
  bench::GroupPtr group_;
  std::vector<int32_t> routes_, counts_;
  std::vector<char> plan_;
  std::vector<float> tokens_, received_, combined_;
  std::vector<float> weights_ = std::vector<float>(size_t{kTokens} * kTopK, 1);
  std::vector<float> received_weights_ = std::vector<float>(Capacity());
  int32_t total_ = 0;
  bool says_last_ = false, last_ = false;
  std::vector<Sample> samples_;
};

void Main(const Arguments& arguments) {
  std::vector<std::unique_ptr<Member>> members(static_cast<size_t>(arguments.num_groups));
  std::mutex mutex;
  std::exception_ptr failure;
  const auto each = [&](const std::function<void(size_t)>& work) {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          work(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      });
    }
  };
  each([&](size_t i) { members[i] = std::make_unique<Member>(arguments, static_cast<int>(i)); });
  if (failure) std::rethrow_exception(failure);
  std::cout << "ready" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  if (arguments.seconds == 0) return;
  const Clock::time_point start = Clock::now();
  each([&](size_t i) { members[i]->Run(start); });
  if (failure) std::rethrow_exception(failure);
  std::FILE* const file = std::fopen(arguments.file, "w");
  if (file == nullptr) throw std::runtime_error(std::string("cannot write ") + arguments.file);
  for (const auto& member : members) {
    for (const Sample& sample : member->samples()) {
      std::fprintf(file, "%.3f %.1f\n", sample.second, sample.microseconds);
    }
  }
  if (std::fclose(file) != 0)
    throw std::runtime_error(std::string("cannot write ") + arguments.file);
}

}  // namespace
}  // namespace epd::load

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    epd::load::Main({static_cast<uint32_t>(std::stoul(argv[1])),
                     static_cast<uint32_t>(std::stoul(argv[2])), std::stoi(argv[3]),
                     std::stod(argv[4]), std::stod(argv[5]), argv[6]});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "load_rank: %s\n", error.what());
    return 1;
  }
}
