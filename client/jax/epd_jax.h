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

/* An error's text in the words of epd.jax's API, cut at `words_bytes`; returns its length. See api_words.h. */
size_t epd_jax_words(int code, const char* text, char* words, size_t words_bytes);

/* What to do about it: "call again", "connect again" or "no". */
const char* epd_jax_retry(int code, const char* text);

/* For JAX before 0.11, see call_site.h. */
void epd_jax_follow_compiles_process_wide(void);

/* From now on Ctrl-C (SIGINT) ends the waits of this process for other ranks within a second, with CANCELLED, and its
 * session with them; the handler that is there does what it does. Only where there is one: call it once that of the
 * program is set. One that is set later takes this away again. */
void epd_jax_watch_interrupts(void);

/* Why operations cannot run on this process's GPUs, or "": no driver, or one that lacks what they need. Opens the
 * driver. Returns the text's length without the zero. */
size_t epd_jax_cuda_problem(char* text, size_t text_bytes);

/* The first operation on a GPU that has failed since the last call, in the alias's groups ("": in any). EPD_OK: none. */
int epd_jax_cuda_check(const char* alias, epd_error* error);

/* Gives up what GPUs hold of the alias's groups; before epd_program_finalize. */
void epd_jax_cuda_finalize(const char* alias);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EPD_CLIENT_JAX_EPD_JAX_H_ */
