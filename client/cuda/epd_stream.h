/* Operations in a GPU's stream, for programs and frameworks without JAX. The ranks join through epd_client.h.
 *
 *   epd_stream_open_args open = {sizeof open};           // group, rank, device
 *   epd_stream_group* streams;
 *   if (epd_stream_open(&open, &streams, &error) != EPD_OK) die(error.message);
 *   epd_stream_call call = {sizeof call};                // operation, name, top_k, num_tokens, ...
 *   epd_stream_site* site;
 *   if (epd_stream_add_site(streams, &call, &site, &error) != EPD_OK) die(error.message);
 *   epd_stream_buffers buffers = {sizeof buffers};       // device memory
 *   if (epd_stream_put(site, &buffers, stream, &error) != EPD_OK) die(error.message);   // at every use, or captured once
 *   ... what follows in the stream sees the results ...
 *   if (epd_stream_check(streams, &error) != EPD_OK) die(error.message);                // what has failed in the stream
 *   epd_stream_remove_site(site);
 *   epd_stream_close(streams);
 *
 * Start the program with CUDA_DEVICE_MAX_CONNECTIONS=32, which CUDA reads when it begins: with the default, 8, more streams than
 * hardware queues wait for each other, and one that waits for other ranks may hold up the one that they wait for. Several ranks of a
 * group in one process on one GPU need two queues each.
 *
 * What is captured into a graph holds constants only, so it may be replayed. An operation that
 * fails leaves zeros on every rank, and epd_stream_check and the next epd_stream_put say why. Structs, errors and threads
 * are as in epd_client.h. CUDA's types stand as void*: nothing here needs its headers.
 */
#ifndef EPD_CLIENT_CUDA_EPD_STREAM_H_
#define EPD_CLIENT_CUDA_EPD_STREAM_H_

#include <stddef.h>
#include <stdint.h>

#include "client/c/epd_client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank of a group, on a GPU of this process. */
typedef struct epd_stream_group epd_stream_group;
/* One call of a program, in that group. */
typedef struct epd_stream_site epd_stream_site;

typedef struct epd_stream_open_args {
  size_t struct_size;
  epd_group* group; /* Of a backend on devices; to be left after epd_stream_close. */
  uint32_t rank;
  int32_t device;     /* As this process's CUDA driver counts. */
  int64_t timeout_ms; /* 0: 60 s. */
} epd_stream_open_args;

/* Maps the rank's staging on the device. Allocates device memory there: nothing may wait in a stream.
 *   FAILED_PRECONDITION  no driver, or one that cannot map the staging or lacks stream memory operations; or the group's
 *                        staging is not on this device; or other ranks of this process are there, and it has too few hardware
 *                        queues for all of them (CUDA_DEVICE_MAX_CONNECTIONS)
 *   DEADLINE_EXCEEDED    the group was not READY in time
 *   RESOURCE_EXHAUSTED   device memory */
EPD_API int epd_stream_open(const epd_stream_open_args* args, epd_stream_group** streams,
                            epd_error* error);

/* The first operation that has failed in a stream since somebody asked; EPD_OK: none. Never blocks. */
EPD_API int epd_stream_check(epd_stream_group* streams, epd_error* error);

/* Nothing may be put any more; sites may live on. NULL is fine. */
EPD_API void epd_stream_close(epd_stream_group* streams);

typedef enum epd_stream_operation {
  EPD_STREAM_PREPARE = 1,
  EPD_STREAM_DISPATCH = 2,
  EPD_STREAM_COMBINE = 3,
  EPD_STREAM_DISPATCH_BACKWARD = 4,
  EPD_STREAM_COMBINE_BACKWARD = 5
} epd_stream_operation;

/* What is the same at every use of a call. Ranks' uses of calls with the same name, or the same program and ordinal,
 * meet in the order in which each rank's stream comes to them. */
typedef struct epd_stream_call {
  size_t struct_size;
  epd_stream_operation operation;
  const char* name;    /* NULL: by program and ordinal. */
  uint8_t program[16]; /* A digest of what the ranks' programs have in common. */
  uint32_t ordinal;
  uint32_t top_k;
  uint32_t alignment; /* 0 or a power of two. */
  uint64_t num_tokens;
  /* Not of prepare: */
  uint64_t recv_capacity;
  epd_dtype dtype;
  uint32_t hidden; /* Elements of a row. */
  /* Of a call without a name: where in its program it stands, for people who ask why it hangs, and for traces. NULL:
   * nothing is known. It is no part of what tells calls apart; of a longer text its last 31 bytes are shown. */
  const char* scope;
} epd_stream_call;

/* Allocates nothing on the device.
 *   INVALID_ARGUMENT    a size does not fit the group
 *   RESOURCE_EXHAUSTED  op slots or prepares: too many calls are in programs of this process */
EPD_API int epd_stream_add_site(epd_stream_group* streams, const epd_stream_call* call,
                                epd_stream_site** site, epd_error* error);

/* Gives the site back. Streams and graphs must not use it any more. NULL is fine. */
EPD_API void epd_stream_remove_site(epd_stream_site* site);

/* Device memory, aligned to 16 bytes: T is num_tokens, K top_k, C recv_capacity. */
typedef struct epd_stream_buffers {
  size_t struct_size;
  void* handle_mem;          /* [epd_handle_mem_size]: out of prepare, in of the others. */
  const void* topk_idx;      /* prepare [T, K]; negative: no route. */
  uint32_t idx_bytes;        /* Of an index: 4 or 8. */
  int32_t* token_counts;     /* prepare, out [num_token_counts]: this rank's experts, then zeros. */
  uint64_t num_token_counts; /* At least the rank's experts. */
  int32_t* total_recv;       /* prepare, out [1]. */
  /* Dispatch, combine backward: rows [T, hidden], out [C, hidden]. Combine, dispatch backward: rows [C, hidden], out
   * [T, hidden]. */
  const void* rows;
  void* out_rows;
  /* Dispatch: [T, K], out [C]. Dispatch backward: [C], out [T, K]. The others: NULL. */
  const float* weights;
  float* out_weights;
} epd_stream_buffers;

/* Puts one use of the site into `stream` (a CUstream of the group's device). Waits for no device and no rank, but for
 * room in the stream where it is full, for READY while the group is being formed anew, and for the use's end while a
 * node's daemon stops in order: one that then fails with UNAVAILABLE, while epd_group_info::stopping is
 * EPD_GROUP_STOPPED, has happened on no rank. Leave, join again with epd_join_args::plans, open, and put it there;
 * plans in device memory are good. What was captured is to be captured again. Thread-safe; uses of one site, and those
 * that are put into one stream, go one behind the other.
 *   INVALID_ARGUMENT   a buffer is missing, or not aligned
 *   DEADLINE_EXCEEDED  READY did not come back
 *   otherwise          an operation before has failed, or the group has ended: why; nothing was put */
EPD_API int epd_stream_put(epd_stream_site* site, const epd_stream_buffers* buffers, void* stream,
                           epd_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EPD_CLIENT_CUDA_EPD_STREAM_H_ */
