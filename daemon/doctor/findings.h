// What an operator should know about a machine: each finding with its consequence and its fix.
#pragma once

#include <string>
#include <vector>

#include "proto/epd/v1/node.pb.h"

namespace epd {

struct DoctorFinding {
  std::string what;
  bool ok = true;
  std::string found;
  std::string consequence;  // When not ok.
  std::string fix;
};

void AddFindings(std::vector<DoctorFinding> findings, v1::GetDoctorResponse& response);

}  // namespace epd
