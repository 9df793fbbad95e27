// Short spellings for making a KernelError; for the kernels' own sources.
#pragma once

#include <cstdint>

#include "kernels/kernel_error.h"

namespace epd {

template <typename Got, typename Expected>
inline KernelError Fault(Code code, KernelFault fault, Got got, Expected expected) {
  KernelError error;
  error.code = code;
  error.fault = fault;
  // Sign-extends: a negative int32 stays negative when it is printed as int64.
  error.got = static_cast<std::uint64_t>(got);
  error.expected = static_cast<std::uint64_t>(expected);
  return error;
}

template <typename Got, typename Expected>
inline KernelError Invalid(KernelFault fault, Got got, Expected expected) {
  return Fault(Code::kInvalidArgument, fault, got, expected);
}

inline KernelError MissingArgument(const char* name) {
  KernelError error;
  error.code = Code::kInvalidArgument;
  error.fault = KernelFault::kNullArgument;
  error.text = name;
  return error;
}

inline KernelError AtRank(KernelError error, std::int64_t rank) {
  error.rank = static_cast<std::int32_t>(rank);
  return error;
}

inline KernelError AtRoute(KernelError error, std::int64_t token, std::int64_t k) {
  error.token = token;
  error.k = static_cast<std::int32_t>(k);
  return error;
}

inline KernelError AtIndex(KernelError error, std::int64_t index) {
  error.index = index;
  return error;
}

}  // namespace epd
