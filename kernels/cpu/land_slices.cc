#include "kernels/land_slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/reduce_rows.h"

namespace epd {
namespace {

class Lander {
 public:
  explicit Lander(LandSlicesArgs args) : args_(std::move(args)) {
    order_.resize(args_.landings.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::stable_sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
      return args_.landings[a].begin < args_.landings[b].begin;
    });
  }

  // From one row at which a landing begins or ends to the next.
  void Run() {
    const DefaultFloatMode float_mode;
    std::size_t next = 0;
    for (std::int64_t at = 0; at < args_.num_rows;) {
      for (; next < order_.size() && args_.landings[order_[next]].begin == at; ++next) {
        here_.insert(std::upper_bound(here_.begin(), here_.end(), order_[next]), order_[next]);
      }
      std::int64_t end = next < order_.size() ? args_.landings[order_[next]].begin : args_.num_rows;
      for (const std::size_t i : here_) end = std::min(end, args_.landings[i].end);
      Fill(at, end);
      here_.erase(std::remove_if(here_.begin(), here_.end(),
                                 [&](std::size_t i) { return args_.landings[i].end == end; }),
                  here_.end());
      at = end;
    }
  }

 private:
  void Fill(std::int64_t begin, std::int64_t end) {
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * args_.row_bytes;
    const std::size_t offset = static_cast<std::size_t>(begin) * args_.row_bytes;
    std::byte* const out = args_.output + offset;
    if (here_.size() > 1) {
      sources_.clear();
      for (const std::size_t i : here_) {
        sources_.push_back(reinterpret_cast<const std::uint8_t*>(From(i, begin)));
      }
      const ReduceFunction reduce = SelectReduce(args_.dtype, ActiveSimdLevel());
      reduce(sources_.data(), static_cast<std::int32_t>(sources_.size()),
             reinterpret_cast<std::uint8_t*>(out), bytes / DataTypeBytes(args_.dtype));
    } else {
      std::memcpy(out, here_.empty() ? args_.others + offset : From(here_[0], begin), bytes);
    }
  }

  const std::byte* From(std::size_t i, std::int64_t row) const {
    const SliceLanding& landing = args_.landings[i];
    return landing.rows + static_cast<std::size_t>(row - landing.begin) * args_.row_bytes;
  }

  const LandSlicesArgs args_;
  std::vector<std::size_t> order_;  // By begin.
  std::vector<std::size_t> here_;   // Those that cover the row, ascending.
  std::vector<const std::uint8_t*> sources_;
};

}  // namespace

void LandSlices(LandSlicesArgs args) { Lander(std::move(args)).Run(); }

}  // namespace epd
