// What the ranks of a test are told of a fault, for the table in deploy/faults.md.
#pragma once

#include <string>
#include <vector>

namespace epd::testing {

// Writes into the test's results that `who` ("all other ranks") heard `reports` of `fault` ("the process of a rank is
// killed"), from where tests/fault_table.py makes the table. Returns the reports.
std::vector<std::string> Told(const std::string& fault, const std::string& who,
                              std::vector<std::string> reports);

}  // namespace epd::testing
