// NCCL's version codes, as people write them, and the NCCL that NCCL EP works with.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace epd {

// "2.30.7" of 23007: 10000 * major + 100 * minor + patch, since 2.9.
inline std::string NcclVersionText(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

// NCCL EP hands a struct of NCCL's device API, ncclDevComm, from its own code to kernels that it compiles with the headers of
// the NCCL at hand. Its wheel asks for 2.30.7. From 2.30.4 to 2.30.7, and from there to 2.31, the struct got fields in
// its middle: with such headers the kernels would read other fields than were written, and nothing would say so.
inline constexpr int kNcclEpOldestNccl = 23007;
inline constexpr int kNcclEpNcclBelow = 23100;

// Why NCCL EP cannot be used with the NCCL of this code; "": it can.
inline std::string WhyNotWithNcclEp(int nccl) {
  if (nccl >= kNcclEpOldestNccl && nccl < kNcclEpNcclBelow) return "";
  return absl::StrCat("NCCL EP needs NCCL ", NcclVersionText(kNcclEpOldestNccl),
                      " or newer, but older than ", NcclVersionText(kNcclEpNcclBelow),
                      ", and there is ", NcclVersionText(nccl));
}

}  // namespace epd
