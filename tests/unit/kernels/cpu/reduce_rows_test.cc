// Goal: every SIMD level adds and rounds like the reference, for every 16-bit pattern and for the
// hard fp32 ones, at every length and address.
#include "kernels/cpu/reduce_rows.h"

#include <gtest/gtest.h>

#include "tests/unit/kernels/problems.h"
#include "tests/unit/kernels/reference.h"

namespace epd {
namespace {

std::vector<SimdLevel> Levels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : kAllSimdLevels) {
    if (SimdLevelSupported(level)) levels.push_back(level);
  }
  return levels;
}

void ExpectLikeReference(const std::vector<reference::Bytes>& rows, DataType dtype) {
  std::vector<const std::uint8_t*> pointers;
  for (const reference::Bytes& row : rows) pointers.push_back(row.data());
  const std::size_t bytes = rows[0].size();
  const reference::Bytes want = reference::SumRows(pointers, bytes, dtype);
  for (const SimdLevel level : Levels()) {
    reference::Bytes got(bytes, 0xee);
    SelectReduce(dtype, level)(pointers.data(), static_cast<std::int32_t>(rows.size()), got.data(),
                               bytes / DataTypeBytes(dtype));
    EXPECT_EQ(got, want) << SimdLevelName(level) << " dtype=" << static_cast<int>(dtype);
  }
}

// All 65,536 patterns plus one value each: zeros, ones, ties, the largest, infinities, NaN.
TEST(ReduceRowsTest, EverySixteenBitPatternRoundsLikeTheReference) {
  reference::Bytes patterns(1 << 17);
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(patterns.data() + i * 2, &bits, 2);
  }
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    for (const std::uint16_t other :
         {0x0000, 0x8000, 0x0001, 0x3c00, 0x3c01, 0x3f81, 0x1400, 0x7bff, 0x7f7f, 0xfbff, 0x7c00,
          0xff80, 0x7f80, 0x7e01, 0x0400}) {
      reference::Bytes row(patterns.size());
      for (std::size_t i = 0; i < row.size(); i += 2) std::memcpy(row.data() + i, &other, 2);
      SCOPED_TRACE(other);
      ExpectLikeReference({patterns, row}, dtype);
      ExpectLikeReference({row, patterns}, dtype);
    }
  }
}

TEST(ReduceRowsTest, HardFloat32ValuesAddLikeTheReference) {
  const std::uint32_t hard[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000,
                                0x3f800000, 0x3f800001, 0x33800000, 0xb3800000, 0x7f7fffff,
                                0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,
                                0x7f800001, 0xffa00000};
  reference::Bytes left;
  reference::Bytes right;
  for (const std::uint32_t a : hard) {
    for (const std::uint32_t b : hard) {
      left.insert(left.end(), reinterpret_cast<const std::uint8_t*>(&a),
                  reinterpret_cast<const std::uint8_t*>(&a) + 4);
      right.insert(right.end(), reinterpret_cast<const std::uint8_t*>(&b),
                   reinterpret_cast<const std::uint8_t*>(&b) + 4);
    }
  }
  ExpectLikeReference({left, right}, DataType::kFloat32);
  ExpectLikeReference({left, right, left}, DataType::kFloat32);
}

// Lengths around every block and lane size, rows at odd addresses, and nothing written beyond.
TEST(ReduceRowsTest, EveryLengthAndAddressWorks) {
  Random random(11);
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16}) {
    for (std::size_t elements = 0; elements <= 300; ++elements) {
      const std::size_t bytes = elements * DataTypeBytes(dtype);
      const std::size_t shift = elements % 5;
      std::vector<reference::Bytes> rows;
      std::vector<const std::uint8_t*> pointers;
      for (int r = 0; r < 3; ++r) rows.push_back(RandomRows(random, bytes, dtype));
      std::vector<reference::Bytes> shifted(3, reference::Bytes(shift, 0));
      for (int r = 0; r < 3; ++r) {
        shifted[r].insert(shifted[r].end(), rows[r].begin(), rows[r].end());
        pointers.push_back(shifted[r].data() + shift);
      }
      const reference::Bytes want = reference::SumRows(pointers, bytes, dtype);
      for (const SimdLevel level : Levels()) {
        reference::Bytes got(bytes + shift + 64, 0xee);
        SelectReduce(dtype, level)(pointers.data(), 3, got.data() + shift, elements);
        EXPECT_EQ(reference::Bytes(got.begin() + shift, got.end() - 64), want)
            << SimdLevelName(level) << " elements=" << elements;
        EXPECT_EQ(reference::Bytes(got.end() - 64, got.end()), reference::Bytes(64, 0xee));
      }
    }
  }
}

TEST(ReduceRowsTest, NoFunctionForAnUnknownType) {
  EXPECT_EQ(SelectReduce(static_cast<DataType>(0), SimdLevel::kScalar), nullptr);
}

}  // namespace
}  // namespace epd
