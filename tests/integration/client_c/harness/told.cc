#include "tests/integration/client_c/harness/told.h"

#include <gtest/gtest.h>

namespace epd::testing {

std::vector<std::string> Told(const std::string& fault, const std::string& who,
                              std::vector<std::string> reports) {
  // Of two properties of a test that have one name only the second is kept.
  static int number = 0;
  std::string lines = fault + "\n" + who;
  for (const std::string& report : reports) lines += "\n" + report;
  ::testing::Test::RecordProperty("told " + std::to_string(++number), lines);
  return reports;
}

}  // namespace epd::testing
