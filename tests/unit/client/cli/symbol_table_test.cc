// Goal: an address has the name of the function that it lies in, of the file that ran and of no other.
#include "client/cli/symbol_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

namespace epd::cli {

// With a name that is known.
__attribute__((noinline, used)) int NamedFunction(int x) { return x * 3 + 1; }

namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSelf[] = "/proc/self/exe";

// What is to be taken off this program's addresses.
uint64_t Bias() {
  uint64_t bias = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uint64_t*>(out) = info->dlpi_addr;
        return 1;  // The first one is the program.
      },
      &bias);
  return bias;
}

TEST(SymbolTableTest, AnAddressInAFunctionHasItsName) {
  const auto table = SymbolTable::Read(kSelf, "");
  ASSERT_TRUE(table.ok()) << table.status();
  const uint64_t begin = reinterpret_cast<uint64_t>(&NamedFunction) - Bias();
  EXPECT_EQ(table->NameOf(begin), "epd::cli::NamedFunction(int)+0x0");
  EXPECT_EQ(table->NameOf(begin + 1), "epd::cli::NamedFunction(int)+0x1");
}

TEST(SymbolTableTest, BetweenFunctionsThereIsNoName) {
  SymbolTable table;
  table.Add(0x100, 0x10, "f");
  table.Add(0x200, 0, "in_assembler");
  EXPECT_EQ(table.NameOf(0xff), "");
  EXPECT_EQ(table.NameOf(0x10f), "f+0xf");
  EXPECT_EQ(table.NameOf(0x110), "");
  EXPECT_EQ(table.NameOf(0x280), "in_assembler+0x80");
}

TEST(SymbolTableTest, AnotherBuildGivesNoNames) {
  const auto table = SymbolTable::Read(kSelf, std::string(20, 'x'));
  EXPECT_EQ(table.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("another build"));
}

TEST(SymbolTableTest, WhatIsNoElfFileIsRefused) {
  const std::string path = testing::TempDir() + "/not_elf";
  std::ofstream(path) << std::string(100, 'a');
  EXPECT_EQ(SymbolTable::Read(path, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SymbolTable::Read("/nonexistent", "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SymbolTable::Read("/", "").status().code(), absl::StatusCode::kNotFound);
}

// A file may be written by anybody who may write a page: each length of a real one's beginning is read without harm.
TEST(SymbolTableTest, AFileThatIsCutOffOrDamagedIsRefused) {
  std::ifstream self(kSelf, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(self), {});
  const std::string path = testing::TempDir() + "/damaged";
  for (const size_t length : {size_t{0}, size_t{10}, size_t{63}, size_t{64}, whole.size() / 2}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, length);
    EXPECT_FALSE(SymbolTable::Read(path, "").ok()) << length;
  }
  for (size_t at = 16; at < 64; ++at) {  // Each byte of its header.
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
    std::ofstream(path, std::ios::binary) << damaged;
    const auto read = SymbolTable::Read(path, "");
    EXPECT_THAT(std::string(read.status().message()), AnyOf(StartsWith("'"), ""));
  }
}

}  // namespace
}  // namespace epd::cli
