#include "daemon/worker/engine/packed_numbers.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace epd {

static_assert(std::endian::native == std::endian::little, "numbers are cut off at their high end");

uint32_t PackedNumbers::Range::width() const {
  const auto num_bytes = static_cast<uint32_t>((std::bit_width(high - low) + 7) / 8);
  return num_bytes == 0 ? 0 : std::bit_ceil(num_bytes);
}

PackedNumbers PackedNumbers::Of(const std::vector<uint64_t>& numbers) {
  PackedNumbers packed(static_cast<uint32_t>(numbers.size()));
  if (numbers.empty()) return packed;
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  packed.low_ = *low;
  packed.width_ = Range{*low, *high}.width();
  packed.packed_ = std::vector<uint8_t>(size_t{packed.size_} * packed.width_);
  for (uint32_t i = 0; i < packed.size_; ++i) packed.Put(i, numbers[i]);
  return packed;
}

uint64_t PackedNumbers::At(uint32_t i) const {
  uint64_t above = 0;
  if (width_ > 0) std::memcpy(&above, &packed_[size_t{i} * width_], width_);
  return low_ + above;
}

void PackedNumbers::Put(uint32_t i, uint64_t value) {
  const uint64_t above = value - low_;
  if (width_ > 0) std::memcpy(&packed_[size_t{i} * width_], &above, width_);
}

bool PackedNumbers::Holds(uint64_t value) const {
  return value >= low_ && Range{low_, value}.width() <= width_;
}

PackedNumbers::Range PackedNumbers::RangeWith(uint32_t i, uint64_t value) const {
  Range range{value, value};
  for (uint32_t other = 0; other < size_; ++other) {
    if (other == i) continue;
    range.low = std::min(range.low, At(other));
    range.high = std::max(range.high, At(other));
  }
  return range;
}

size_t PackedNumbers::BytesWith(uint32_t i, uint64_t value) const {
  return Holds(value) ? bytes() : size_t{size_} * RangeWith(i, value).width();
}

void PackedNumbers::Set(uint32_t i, uint64_t value) {
  if (!Holds(value)) {
    std::vector<uint64_t> numbers(size_);
    for (uint32_t other = 0; other < size_; ++other) numbers[other] = At(other);
    numbers[i] = value;
    *this = Of(numbers);
    return;
  }
  Put(i, value);
}

}  // namespace epd
