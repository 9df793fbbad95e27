// What a kernel found wrong, as a status.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/kernel_error.h"

namespace epd {

// With the error's own code; `where` stands before its text.
inline absl::Status ToStatus(const KernelError& error, absl::string_view where = "") {
  if (error.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(error.code),
                      absl::StrCat(where, ToString(error)));
}

}  // namespace epd
