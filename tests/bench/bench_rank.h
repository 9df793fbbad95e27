// One rank of a contender in C++: answers the driver's commands (see fleet.py).
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace epd::bench {

using Row16 = uint16_t;  // A bfloat16.

// An uninitialised array of rows, aligned to a cache line.
class Rows {
 public:
  Rows() = default;
  // Throws std::bad_alloc.
  explicit Rows(size_t num_values);
  Rows(Rows&& other) noexcept { *this = std::move(other); }
  Rows& operator=(Rows&& other) noexcept;
  ~Rows() { std::free(data_); }

  Row16* data() { return data_; }
  const Row16* data() const { return data_; }
  size_t size() const { return size_; }
  // Every value becomes a NaN, so that what is not written shows.
  void Poison();

 private:
  Row16* data_ = nullptr;
  size_t size_ = 0;
};

// One size with the data of all ranks; see problem.py, which wrote it.
struct Problem {
  int rank = 0;
  int num_ranks = 0;
  int64_t num_tokens = 0;
  int64_t hidden = 0;
  int64_t top_k = 0;
  int num_experts = 0;
  int64_t recv_capacity = 0;
  std::vector<std::vector<int32_t>> routing;  // By rank: [num_tokens, top_k].
  Rows tokens;                                // [num_tokens, hidden]
  std::vector<float> topk_weights;            // [num_tokens, top_k]

  int experts_per_rank() const { return num_experts / num_ranks; }
  // Expert of each slot of `target`'s receive buffer that a route fills, in order.
  std::vector<int> SlotExperts(int target) const;
};

inline float FromBf16(Row16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest, ties to even. Not for NaNs.
inline Row16 ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<Row16>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Multiplies each live row of a receive buffer by its expert's scale: combine's input.
Rows ScaledByExpert(const Problem& problem, const Row16* received);

// Binds this thread to a core of its own where each of `num_ranks` can have one, as mpirun does; else it may run where it
// might when the process began. Left to the kernel, ranks that yield to each other may stay on one core for seconds.
void TakeACore(int rank, int num_ranks);

// Throws std::runtime_error for whatever goes wrong; the driver reports its text.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual void Load(Problem problem) = 0;
  virtual void Unload() = 0;
  // What an operation needs and nobody times; before each Run.
  virtual void GetReady(const std::string& operation) { static_cast<void>(operation); }
  // One operation: "dispatch", "combine", or one of the contender's own.
  virtual void Run(const std::string& operation) = 0;
  // The result of the last Run of `operation`; empty: it has none.
  virtual std::span<const Row16> Result(const std::string& operation) = 0;
  // "name=value" separated by spaces.
  virtual std::string Versions() = 0;
  // Any other command. The default refuses.
  virtual std::string Other(const std::string& line);
};

// Connects to the driver's socket, says `rank`, and answers until the driver closes. Returns the
// exit status.
int ServeDriver(const std::string& socket_path, int rank, Contender& contender);

}  // namespace epd::bench
