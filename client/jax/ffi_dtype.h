// XLA's element types as the C library has them.
#pragma once

#include <xla/ffi/api/ffi.h>

#include "client/c/epd_client.h"

namespace epd::jax {

inline epd_dtype DtypeOf(::xla::ffi::DataType type) {
  switch (type) {
    case ::xla::ffi::DataType::F32:
      return EPD_DTYPE_FLOAT32;
    case ::xla::ffi::DataType::BF16:
      return EPD_DTYPE_BFLOAT16;
    case ::xla::ffi::DataType::F16:
      return EPD_DTYPE_FLOAT16;
    default: {
      const auto width = static_cast<unsigned>(::xla::ffi::ByteWidth(type));
      return EPD_DTYPE_OPAQUE(width, static_cast<unsigned>(type) & 0xff);
    }
  }
}

}  // namespace epd::jax
