// NCCL's version codes, as people write them.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace epd {

// "2.30.7" of 23007: 10000 * major + 100 * minor + patch, since 2.9.
inline std::string NcclVersionText(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

}  // namespace epd
