/* What the Python package calls in libepd_jax.so, by ctypes, beside epd_program.h: what only XLA's programs need. Private
 * to it: no promise of stability. */
#ifndef EPD_CLIENT_JAX_EPD_JAX_H_
#define EPD_CLIENT_JAX_EPD_JAX_H_

#include <stddef.h>
#include <stdint.h>

#include "client/c/epd_client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The FFI API that the handlers were built on. */
int epd_jax_ffi_api_major(void);
int epd_jax_ffi_api_minor(void);

/* A compilation in this thread has ended (or begins). */
void epd_jax_end_compile(void);

/* 1 if a program that is compiled and lives has a call in the alias's group, else 0. */
int epd_jax_is_named(const char* alias);

/* For JAX before 0.11, see call_site.h. */
void epd_jax_follow_compiles_process_wide(void);

/* Why operations cannot run on this process's GPUs, or "": no driver, or one that lacks what they need. Opens the
 * driver. Returns the text's length without the zero. */
size_t epd_jax_cuda_problem(char* text, size_t text_bytes);

/* The first operation on a GPU that has failed since the last call, in the alias's groups ("": in any). EPD_OK: none. */
int epd_jax_cuda_check(const char* alias, epd_error* error);

/* How often XLA has called a handler of the GPUs; replays of its command buffers call none. */
uint64_t epd_jax_cuda_calls(void);

/* Gives up what GPUs hold of the alias's groups; before epd_program_finalize. */
void epd_jax_cuda_finalize(const char* alias);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EPD_CLIENT_JAX_EPD_JAX_H_ */
