#include "tests/integration/client_c/harness/exchange_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace epd::testing {
namespace {

// Where one route of a token lands.
struct Slot {
  uint32_t rank = 0;
  uint32_t slot = 0;
  bool live = false;
};

uint16_t HalfBits(float value) {
  if (std::isnan(value)) return 0x7e00;
  if (value == 0) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto fraction = static_cast<uint16_t>((mantissa * 2 - 1) * 1024);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent - 1 + 15) << 10) | fraction);
}

void Put(const ExchangeCase& c, Bytes& rows, size_t index, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  if (c.dtype == EPD_DTYPE_BFLOAT16) bits >>= 16;
  if (c.dtype == EPD_DTYPE_FLOAT16) bits = HalfBits(value);
  std::memcpy(&rows[index * c.element_bytes()], &bits, c.element_bytes());
}

int64_t Route(const ExchangeCase& c, std::mt19937& random) {
  const auto any = static_cast<int64_t>(random() % c.num_experts);
  switch (c.routing) {
    case Routing::kNone:
      return -1;
    case Routing::kOneExpert:
      return 1 % c.num_experts;
    case Routing::kSomeMissing:
      return random() % 3 == 0 ? -1 - static_cast<int64_t>(random() % 5) : any;
    case Routing::kRandom:
      break;
  }
  return any;
}

float SmallInteger(std::mt19937& random) {
  return static_cast<float>(static_cast<int>(random() % 61) - 30);
}

class Builder {
 public:
  explicit Builder(const ExchangeCase& c)
      : c_(c), random_(c.seed), ranks_(c.num_ranks), slots_(c.num_ranks) {}

  std::vector<RankData> Build() {
    for (uint32_t rank = 0; rank < c_.num_ranks; ++rank) MakeInputs(rank);
    for (uint32_t rank = 0; rank < c_.num_ranks; ++rank) Receive(rank);
    for (uint32_t rank = 0; rank < c_.num_ranks; ++rank) Combine(rank);
    return std::move(ranks_);
  }

 private:
  // Behind the `k` routes that the token has.
  int64_t NextRoute(const std::vector<int64_t>& routes, size_t k) {
    for (;;) {
      const int64_t route = Route(c_, random_);
      const auto of_token = routes.end() - static_cast<ptrdiff_t>(k);
      const bool again = std::find(of_token, routes.end(), route) != routes.end();
      if (!c_.distinct || route < 0 || !again) return route;
    }
  }

  void MakeInputs(uint32_t rank) {
    RankData& r = ranks_[rank];
    const size_t routes = size_t{c_.tokens(rank)} * c_.top_k;
    for (size_t i = 0; i < routes; ++i) {
      r.topk_idx.push_back(NextRoute(r.topk_idx, i % c_.top_k));
      r.topk_weights.push_back(SmallInteger(random_) / 8);
    }
    values_.emplace_back();
    for (size_t i = 0; i < size_t{c_.tokens(rank)} * c_.hidden; ++i)
      values_[rank].push_back(SmallInteger(random_));
    r.tokens.resize(values_[rank].size() * c_.element_bytes());
    for (size_t i = 0; i < values_[rank].size(); ++i) Put(c_, r.tokens, i, values_[rank][i]);
    slots_[rank].resize(routes);
  }

  // Fills the receive buffers of `rank`, and what its experts answer.
  void Receive(uint32_t rank) {
    RankData& r = ranks_[rank];
    const size_t capacity = c_.recv_capacity(rank);
    r.recv_tokens.assign(capacity * c_.row_bytes(), 0);
    r.recv_weights.assign(capacity, 0);
    r.expert_out.resize(capacity * c_.row_bytes());
    r.expert_weights.assign(capacity, NAN);
    for (size_t i = 0; i < capacity * c_.hidden; ++i) Put(c_, r.expert_out, i, NAN);
    answers_.emplace_back(capacity * c_.hidden, NAN);
    uint32_t slot = 0;
    for (uint32_t expert = 0; expert < c_.num_experts; ++expert) {
      if (c_.owner(expert) != rank) continue;
      const uint32_t begin = slot;
      for (uint32_t source = 0; source < c_.num_ranks; ++source) {
        const RankData& s = ranks_[source];
        for (size_t route = 0; route < s.topk_idx.size(); ++route) {
          if (s.topk_idx[route] == static_cast<int64_t>(expert))
            ReceiveRow(rank, slot++, source, route);
        }
      }
      while ((slot - begin) % c_.alignment != 0) ++slot;
      r.token_counts.push_back(static_cast<int32_t>(slot - begin));
    }
    r.total_recv = static_cast<int32_t>(slot);
  }

  void ReceiveRow(uint32_t rank, uint32_t slot, uint32_t source, size_t route) {
    const bool live = slot < c_.recv_capacity(rank);
    slots_[source][route] = {rank, slot, live};
    if (!live) return;
    RankData& r = ranks_[rank];
    const size_t row_bytes = c_.row_bytes();
    std::memcpy(&r.recv_tokens[slot * row_bytes],
                &ranks_[source].tokens[route / c_.top_k * row_bytes], row_bytes);
    r.recv_weights[slot] = ranks_[source].topk_weights[route];
    r.expert_weights[slot] = SmallInteger(random_);
    for (size_t h = 0; h < c_.hidden; ++h) {
      const size_t i = size_t{slot} * c_.hidden + h;
      answers_[rank][i] = SmallInteger(random_);
      Put(c_, r.expert_out, i, answers_[rank][i]);
    }
  }

  void Combine(uint32_t rank) {
    RankData& r = ranks_[rank];
    r.combined.resize(r.tokens.size());
    r.weight_grads.assign(r.topk_idx.size(), 0);
    for (size_t token = 0; token < c_.tokens(rank); ++token) {
      for (size_t h = 0; h < c_.hidden; ++h) {
        float sum = 0;
        for (size_t k = 0; k < c_.top_k; ++k) {
          const Slot& slot = slots_[rank][token * c_.top_k + k];
          if (slot.live) sum += answers_[slot.rank][size_t{slot.slot} * c_.hidden + h];
        }
        Put(c_, r.combined, token * c_.hidden + h, sum);
      }
    }
    for (size_t route = 0; route < r.topk_idx.size(); ++route) {
      const Slot& slot = slots_[rank][route];
      if (slot.live) r.weight_grads[route] = ranks_[slot.rank].expert_weights[slot.slot];
    }
  }

  const ExchangeCase& c_;
  std::mt19937 random_;
  std::vector<RankData> ranks_;
  std::vector<std::vector<Slot>> slots_;     // [rank][T * K]
  std::vector<std::vector<float>> values_;   // [rank][T * H]
  std::vector<std::vector<float>> answers_;  // [rank][C * H]
};

}  // namespace

uint32_t ExchangeCase::max_tokens() const {
  return num_tokens.empty() ? 8
                            : std::max(1u, *std::max_element(num_tokens.begin(), num_tokens.end()));
}

uint32_t ExchangeCase::recv_capacity() const {
  return capacity != 0 ? capacity : num_ranks * max_tokens() * top_k + num_experts * alignment;
}

uint32_t ExchangeCase::owner(uint32_t expert) const {
  if (!expert_owner.empty()) return expert_owner[expert];
  for (uint32_t rank = 0; rank + 1 < num_ranks; ++rank) {
    if (expert < (rank + 1) * num_experts / num_ranks) return rank;
  }
  return num_ranks - 1;
}

uint32_t ExchangeCase::num_local_experts(uint32_t rank) const {
  uint32_t count = 0;
  for (uint32_t expert = 0; expert < num_experts; ++expert) count += owner(expert) == rank ? 1 : 0;
  return count;
}

std::string ExchangeCase::ToString() const {
  return "R=" + std::to_string(num_ranks) + " E=" + std::to_string(num_experts) +
         " K=" + std::to_string(top_k) + " H=" + std::to_string(hidden) +
         " align=" + std::to_string(alignment) + " C=" + std::to_string(recv_capacity()) +
         (expert_owner.empty() ? "" : " table") + " dtype=" + std::to_string(dtype) +
         " routing=" + std::to_string(static_cast<int>(routing)) + (drop ? " drop" : "") +
         (arrays.empty() ? "" : " arrays=" + std::to_string(arrays.size())) +
         (worker_executor ? " worker" : " client") + " seed=" + std::to_string(seed);
}

std::vector<RankData> MakeExchange(const ExchangeCase& c) { return Builder(c).Build(); }

}  // namespace epd::testing
