// A number for each rank, in as few bytes as they need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace epd {

// [size] numbers, all 0 at first. Kept are the lowest and, of each, what it has above that, in 0, 1, 2, 4 or 8 bytes: ranks
// that run in step are a few apart, so that one takes a byte. Not thread-safe.
class PackedNumbers {
 public:
  explicit PackedNumbers(uint32_t size) : size_(size) {}
  static PackedNumbers Of(const std::vector<uint64_t>& numbers);

  uint64_t At(uint32_t i) const;
  void Set(uint32_t i, uint64_t value);

  // On the heap; BytesWith: once `i` is set to `value`.
  size_t bytes() const { return packed_.size(); }
  size_t BytesWith(uint32_t i, uint64_t value) const;

 private:
  struct Range {
    uint64_t low = 0;
    uint64_t high = 0;

    uint32_t width() const;
  };
  bool Holds(uint64_t value) const;
  Range RangeWith(uint32_t i, uint64_t value) const;
  void Put(uint32_t i, uint64_t value);

  uint32_t size_;
  uint32_t width_ = 0;  // Bytes of one.
  uint64_t low_ = 0;
  std::vector<uint8_t> packed_;  // [size, width]
};

}  // namespace epd
