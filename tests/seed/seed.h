// The seed of a test whose assertions hold for every seed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace epd::testing {

// Returns EPD_TEST_SEED if that is set, else draws one, and prints it: how a failed run is repeated.
//   bazel test //some:test --test_env=EPD_TEST_SEED=4711
inline uint32_t TestSeed() {
  const char* const given = std::getenv("EPD_TEST_SEED");
  const uint32_t seed = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                                         : std::random_device{}();
  std::printf("EPD_TEST_SEED=%u\n", seed);
  std::fflush(stdout);
  return seed;
}

}  // namespace epd::testing
