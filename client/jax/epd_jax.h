/* What the Python package calls in libepd_jax.so, by ctypes. Private to it: no promise of
 * stability.
 *
 * Functions that return int return EPD_OK or a status code, and then fill `error`. See groups.h. */
#ifndef EPD_CLIENT_JAX_EPD_JAX_H_
#define EPD_CLIENT_JAX_EPD_JAX_H_

#include <stddef.h>
#include <stdint.h>

#include "client/c/epd_client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct epd_jax_rank {
  uint32_t domain;
  uint32_t position; /* Along ep. */
  const char* device;
} epd_jax_rank;

typedef struct epd_jax_group {
  size_t struct_size;
  const char* alias;
  const char* job;
  const char* instance;
  const char* socket_path; /* "": the C library looks for the daemon. */
  const char* daemon_path; /* The epd to start, "": the C library looks for it. */
  uint32_t num_domains;
  uint32_t ranks;
  uint32_t experts;
  uint32_t local_experts;
  const uint32_t* expert_owner; /* [experts] or NULL: contiguous. */
  int64_t owners;               /* Its digest; 0 without a table. */
  uint32_t max_tokens;
  uint32_t recv_capacity;
  uint32_t hidden;
  uint32_t top_k;
  int32_t max_dtype; /* epd_dtype */
  int32_t drop_on_overflow;
  int32_t executor; /* epd_executor */
  int32_t by_rank;
  int64_t warn_after_ms;
  int64_t absent_ms;
  int64_t undecided_ms;
  int64_t form_ms;
  const epd_jax_rank* held;
  size_t num_held;
  /* For messages. The ranks of other processes, as far as known, whose `device` says whose it is; this
   * process's devices. */
  const epd_jax_rank* elsewhere;
  size_t num_elsewhere;
  const char* devices;
  /* For people, see epd_join_args; "": none. */
  const char* program;
  const char* metadata;
  const char* backend; /* "": the daemon's choice. */
} epd_jax_group;

const char* epd_jax_version(void);

/* The FFI API that the handlers were built on. */
int epd_jax_ffi_api_major(void);
int epd_jax_ffi_api_minor(void);

/* Opens the process's session; paths as above. */
int epd_jax_connect(const char* socket_path, const char* daemon_path, epd_error* error);

/* Writes the path of the socket in use, or "", and returns its length without the zero. */
size_t epd_jax_socket_path(char* path, size_t path_bytes);

/* Joins the groups of all domains held here; collective. */
int epd_jax_bootstrap(const epd_jax_group* group, epd_error* error);

/* Leaves them. Fine if there are none. Closes the session with the last group. */
void epd_jax_finalize(const char* alias);

/* A call of roles outside of XLA's programs; see meeting.h. */
typedef struct epd_jax_meeting {
  size_t struct_size;
  const char* alias;
  uint32_t domain;
  uint32_t position;
  const char* key;
  uint32_t ranks;
  uint32_t experts;
  uint32_t local_experts;
  uint32_t max_tokens;
} epd_jax_meeting;

/* Waits until all ranks of the domain have come. Errors are those of an operation, the same on every rank. */
int epd_jax_meet(const epd_jax_meeting* meeting, epd_error* error);

/* Tells all ranks that this one does not come: the next use of the key fails on all with `code` and `text`. */
int epd_jax_refuse(const epd_jax_meeting* meeting, int32_t code, const char* text,
                   epd_error* error);

size_t epd_jax_handle_mem_size(uint32_t ranks, uint32_t experts, uint32_t max_tokens,
                               uint32_t top_k);

/* A compilation in this thread has ended (or begins). */
void epd_jax_end_compile(void);

/* For JAX before 0.11, see call_site.h. */
void epd_jax_follow_compiles_process_wide(void);

/* Why operations cannot run on this process's GPUs, or "": no driver, or one that lacks what they need. Opens the
 * driver. Returns the text's length without the zero. */
size_t epd_jax_cuda_problem(char* text, size_t text_bytes);

/* The first operation on a GPU that has failed since the last call, in the alias's groups ("": in any). EPD_OK: none. */
int epd_jax_cuda_check(const char* alias, epd_error* error);

/* Gives up what GPUs hold of the alias's groups; before epd_jax_finalize. */
void epd_jax_cuda_finalize(const char* alias);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EPD_CLIENT_JAX_EPD_JAX_H_ */
