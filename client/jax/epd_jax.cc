#include "client/jax/epd_jax.h"

#include <xla/ffi/api/c_api.h>

#include "client/jax/call_site.h"

int epd_jax_ffi_api_major(void) { return XLA_FFI_API_MAJOR; }
int epd_jax_ffi_api_minor(void) { return XLA_FFI_API_MINOR; }

void epd_jax_end_compile(void) { epd::jax::EndCompile(); }

void epd_jax_follow_compiles_process_wide(void) { epd::jax::FollowCompilesProcessWide(); }
