// What a C program has without epd: MPI_Alltoallv of rows, with the packing before and the
// unpacking after it. The plan is made beforehand. A rank's rows travel sorted by expert, so that
// the receiver unpacks one block per (source, expert) and packs as many for the way back.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "tests/bench/bench_rank.h"

namespace epd::bench {
namespace {

// Rows that lie together on both sides.
struct Block {
  size_t slot = 0;    // First row in the receive buffer [C, H].
  size_t packed = 0;  // First row in the exchanged buffer.
  size_t num_rows = 0;
};

struct Plan {
  std::vector<size_t> send_tokens;  // Token of each row to send.
  std::vector<size_t> home;         // [T, K] row of the returned buffer.
  std::vector<int> send_counts, send_offsets, recv_counts, recv_offsets;  // In rows, by rank.
  std::vector<Block> blocks;
  size_t num_received = 0;
};

std::vector<int> OffsetsOf(const std::vector<int>& counts) {
  std::vector<int> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  return offsets;
}

void PlanSending(const Problem& problem, Plan& plan) {
  const std::vector<int32_t>& mine = problem.routing[static_cast<size_t>(problem.rank)];
  std::vector<size_t> order(mine.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return mine[a] < mine[b]; });
  plan.send_counts.assign(static_cast<size_t>(problem.num_ranks), 0);
  plan.home.resize(mine.size());
  for (size_t row = 0; row < order.size(); ++row) {
    plan.send_tokens.push_back(order[row] / static_cast<size_t>(problem.top_k));
    plan.home[order[row]] = row;
    ++plan.send_counts[static_cast<size_t>(mine[order[row]] / problem.experts_per_rank())];
  }
  plan.send_offsets = OffsetsOf(plan.send_counts);
}

void PlanReceiving(const Problem& problem, Plan& plan) {
  const auto num_ranks = static_cast<size_t>(problem.num_ranks);
  const int first = problem.rank * problem.experts_per_rank();
  const auto num_local = static_cast<size_t>(problem.experts_per_rank());
  std::vector<std::vector<size_t>> counts(num_ranks, std::vector<size_t>(num_local));
  plan.recv_counts.assign(num_ranks, 0);
  for (size_t source = 0; source < num_ranks; ++source) {
    for (const int32_t expert : problem.routing[source]) {
      if (expert / problem.experts_per_rank() != problem.rank) continue;
      ++counts[source][static_cast<size_t>(expert - first)];
      ++plan.recv_counts[source];
    }
  }
  plan.recv_offsets = OffsetsOf(plan.recv_counts);
  std::vector<size_t> packed(plan.recv_offsets.begin(), plan.recv_offsets.end());
  for (size_t expert = 0; expert < num_local; ++expert) {
    for (size_t source = 0; source < num_ranks; ++source) {
      const size_t num_rows = counts[source][expert];
      plan.blocks.push_back({plan.num_received, packed[source], num_rows});
      plan.num_received += num_rows;
      packed[source] += num_rows;
    }
  }
}

class Mpi : public Contender {
 public:
  ~Mpi() override {
    if (row_type_ != MPI_DATATYPE_NULL) MPI_Type_free(&row_type_);
  }

  void Load(Problem problem) override {
    TakeACore(problem.rank, problem.num_ranks);
    problem_ = std::move(problem);
    plan_ = Plan();
    PlanSending(problem_, plan_);
    PlanReceiving(problem_, plan_);
    hidden_ = static_cast<size_t>(problem_.hidden);
    send_ = Rows(plan_.send_tokens.size() * hidden_);
    packed_ = Rows(plan_.num_received * hidden_);
    received_ = Rows(static_cast<size_t>(problem_.recv_capacity) * hidden_);
    combined_ = Rows(static_cast<size_t>(problem_.num_tokens) * hidden_);
    received_.Poison();
    combined_.Poison();
    // The tail stays zero: nothing ever writes there.
    std::fill(received_.data() + plan_.num_received * hidden_, received_.data() + received_.size(),
              0);
    MPI_Type_contiguous(static_cast<int>(problem_.hidden), MPI_UINT16_T, &row_type_);
    MPI_Type_commit(&row_type_);
    Dispatch();
    expert_out_ = ScaledByExpert(problem_, received_.data());
  }

  void Unload() override {
    MPI_Type_free(&row_type_);
    problem_ = Problem();
    for (Rows* rows : {&send_, &packed_, &received_, &combined_, &expert_out_}) *rows = Rows();
  }

  void Run(const std::string& operation) override {
    operation == "dispatch" ? Dispatch() : Combine();
  }

  std::span<const Row16> Result(const std::string& operation) override {
    const Rows& result = operation == "dispatch" ? received_ : combined_;
    return {result.data(), result.size()};
  }

  std::string Versions() override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    // Lines of build facts follow what the library is called: "Open MPI v4.1.4, package: ...", "MPICH Version:\t5.0".
    std::string version(text, static_cast<size_t>(length));
    std::istringstream words(version.substr(0, version.find_first_of(",\n")));
    std::string said;
    for (std::string word; words >> word;) said += (said.empty() ? "" : "_") + word;
    return "mpi=" + said;
  }

 private:
  void Dispatch() {
    for (size_t row = 0; row < plan_.send_tokens.size(); ++row) {
      std::memcpy(send_.data() + row * hidden_,
                  problem_.tokens.data() + plan_.send_tokens[row] * hidden_,
                  hidden_ * sizeof(Row16));
    }
    MPI_Alltoallv(send_.data(), plan_.send_counts.data(), plan_.send_offsets.data(), row_type_,
                  packed_.data(), plan_.recv_counts.data(), plan_.recv_offsets.data(), row_type_,
                  MPI_COMM_WORLD);
    for (const Block& block : plan_.blocks) {
      std::memcpy(received_.data() + block.slot * hidden_, packed_.data() + block.packed * hidden_,
                  block.num_rows * hidden_ * sizeof(Row16));
    }
  }

  void Combine() {
    for (const Block& block : plan_.blocks) {
      std::memcpy(packed_.data() + block.packed * hidden_,
                  expert_out_.data() + block.slot * hidden_,
                  block.num_rows * hidden_ * sizeof(Row16));
    }
    MPI_Alltoallv(packed_.data(), plan_.recv_counts.data(), plan_.recv_offsets.data(), row_type_,
                  send_.data(), plan_.send_counts.data(), plan_.send_offsets.data(), row_type_,
                  MPI_COMM_WORLD);
    sum_.resize(hidden_);
    const auto top_k = static_cast<size_t>(problem_.top_k);
    for (size_t token = 0; token < static_cast<size_t>(problem_.num_tokens); ++token) {
      std::fill(sum_.begin(), sum_.end(), -0.0F);  // What is added to -0 stays as it is.
      for (size_t k = 0; k < top_k; ++k) {
        const Row16* row = send_.data() + plan_.home[token * top_k + k] * hidden_;
        for (size_t i = 0; i < hidden_; ++i) sum_[i] += FromBf16(row[i]);
      }
      Row16* out = combined_.data() + token * hidden_;
      for (size_t i = 0; i < hidden_; ++i) out[i] = ToBf16(sum_[i]);
    }
  }

  Problem problem_;
  Plan plan_;
  size_t hidden_ = 0;
  MPI_Datatype row_type_ = MPI_DATATYPE_NULL;
  Rows send_;      // Rows of this rank, sorted by expert.
  Rows packed_;    // Rows that this rank receives, by source.
  Rows received_;  // [C, H]
  Rows expert_out_;
  Rows combined_;  // [T, H]
  std::vector<float> sum_;
};

}  // namespace
}  // namespace epd::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int exit_status = 2;
  if (argc == 2) {
    epd::bench::Mpi contender;
    exit_status = epd::bench::ServeDriver(argv[1], rank, contender);
  }
  MPI_Finalize();
  return exit_status;
}
