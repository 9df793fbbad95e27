// A sum of rows of bfloat16, in float32 until it is rounded. For the fake NCCL EP; shares nothing with epd's own sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace epd::fake_nccl_ep {

class Bfloat16Sum {
 public:
  explicit Bfloat16Sum(size_t row_bytes) : sum_(row_bytes / sizeof(uint16_t), 0) {}

  void Add(const uint8_t* row) {
    for (float& value : sum_) {
      uint16_t bits = 0;
      std::memcpy(&bits, row, sizeof bits);
      row += sizeof bits;
      const uint32_t wide = uint32_t{bits} << 16;
      float one = 0;
      std::memcpy(&one, &wide, sizeof one);
      value += one;
    }
  }
  // To the nearest, ties to even.
  std::vector<uint8_t> Round() const {
    std::vector<uint8_t> row;
    for (const float value : sum_) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
      row.push_back(static_cast<uint8_t>(rounded));
      row.push_back(static_cast<uint8_t>(rounded >> 8));
    }
    return row;
  }

 private:
  std::vector<float> sum_;
};

}  // namespace epd::fake_nccl_ep
