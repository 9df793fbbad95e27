// How findings about a machine are made: each with its consequence and its fix.
#pragma once

#include <string>
#include <utility>

#include "proto/epd/v1/node.pb.h"

namespace epd {

// Where a process that looks at the machine writes its epd.v1.GetDoctorResponse, serialised.
inline constexpr int kDoctorFd = 3;

// A good one says neither what follows nor what to do.
inline v1::Finding MakeFinding(std::string what, bool ok, std::string found,
                               std::string consequence = "", std::string fix = "") {
  v1::Finding finding;
  finding.set_what(std::move(what));
  finding.set_ok(ok);
  finding.set_found(std::move(found));
  if (!ok) finding.set_consequence(std::move(consequence));
  if (!ok) finding.set_fix(std::move(fix));
  return finding;
}

}  // namespace epd
