/* What a framework (JAX, PyTorch) needs so that its programs exchange tokens: groups that are known by a name, ranks
 * that are known by a place in a mesh, and operations that are known by their place in a program.
 *
 *   epd_error error = {sizeof error};
 *   epd_program_rank held = {sizeof held};               // domain, position, device
 *   epd_group_spec spec = {sizeof spec};                 // num_ranks, num_experts, ...; not the name
 *   epd_program_group group = {sizeof group};
 *   group.alias = "default"; group.job = "job"; group.spec = &spec; group.held = &held; group.num_held = 1;
 *   if (epd_program_join(&group, &error) != EPD_OK) die(error.message);
 *   epd_program_call call = {sizeof call}; call.alias = "default"; call.name = "layer 1/prepare";
 *   if (epd_program_prepare(&call, &prepare, &error) != EPD_OK) die(error.message);
 *   ... dispatch, (the experts), combine ...
 *   epd_program_finalize("default");
 *
 * A program that is compiled once and runs in many jobs may hold nothing of a job. So it holds an *alias*, and there are
 * no handles here: what the alias means in this process, which daemon, group and ranks, is what epd_program_join said
 * last, and is looked up at every call. A daemon that was started again or a group that was formed anew needs nothing
 * from the program. If a node's daemon stops in order, calls wait until it is back, up to reconnect_timeout_ms, join again
 * and go on where they were: no call fails. If it dies, one execution fails with the cause, and the next one waits likewise
 * and joins again.
 *
 * Structs and errors are as in epd_client.h: struct_size is set by the caller, zero means the default for every other
 * field, and what is newer than the library is not read. Functions that return int return EPD_OK or a code of
 * absl::StatusCode, and then fill `error`, which may be NULL. Nothing that is passed in is kept or freed: what is needed
 * later is copied. Texts that may be NULL read as "".
 *
 * All functions may be called from any thread. Groups belong to the process: a forked child has none and joins anew.
 */
#ifndef EPD_CLIENT_PROGRAM_EPD_PROGRAM_H_
#define EPD_CLIENT_PROGRAM_EPD_PROGRAM_H_

#include <stddef.h>
#include <stdint.h>

#include "client/c/epd_client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- groups ---- */

/* One rank: the group of the daemon that it is in, its place there, and where it is: "cuda:0", or words for people. */
typedef struct epd_program_rank {
  size_t struct_size;
  uint32_t domain;
  uint32_t position;
  const char* device;
} epd_program_rank;

/* What an alias means in this process. There is one group of the daemon per domain: "<job>/<alias>/<domain>". */
typedef struct epd_program_group {
  size_t struct_size;
  const char* alias;
  const char* job;
  const char* socket_path; /* "": the C library looks for the daemon. */
  const char* daemon_path; /* The epd to start; "": the C library looks for it. */
  /* Of each domain's group, whose name is made here. A pointer, so that the spec may grow by itself. */
  const epd_group_spec* spec;
  uint32_t local_experts;       /* Most experts of a rank; compared with the program's. */
  int64_t owners;               /* The digest of spec->expert_owner; compared with the program's. */
  int32_t by_rank;              /* 1: positions in programs count the ranks held here. */
  const epd_program_rank* held; /* [num_held] this process's. */
  size_t num_held;
  /* For messages: ranks of other processes, as far as known, whose `device` says whose they are; this process's devices. */
  const epd_program_rank* elsewhere;
  size_t num_elsewhere;
  const char* devices;
  const char* program;  /* For people, see epd_join_args. */
  const char* metadata; /* Likewise. */
  /* How long a call waits for a daemon that has gone, before it fails with what connecting says; 0: the forming deadline,
   * less than 0: not at all, and then also a stop in order fails one execution. */
  int64_t reconnect_timeout_ms;
  /* 1: `held` is empty, and epd_program_join joins nothing: each rank joins at its first call here, in a session of its own.
   * So nobody need know beforehand which ranks a process runs. */
  int32_t joins_by_call;
} epd_program_group;

/* Opens the process's session with the daemon, if there is none; paths as in epd_program_group. Blocks up to the C
 * library's deadline. Errors: see epd_connect. */
EPD_API int epd_program_connect(const char* socket_path, const char* daemon_path, epd_error* error);

/* Writes the path of the session's socket ("" without a session), cut at `path_bytes`. Returns its length. */
EPD_API size_t epd_program_socket_path(char* path, size_t path_bytes);

/* Writes the job that this process belongs to by its environment (EPD_JOB, else the words of its scheduler and launcher; "":
 * nobody says), cut at `job_bytes`. Returns its length, at most 120. */
EPD_API size_t epd_program_job_of_environment(char* job, size_t job_bytes);

/* Makes the alias mean this group: connects, joins the groups of all domains that ranks are held of, and waits until they
 * are READY. Collective. After an error nothing is joined.
 *   FAILED_PRECONDITION  the alias has a group already; epd_program_finalize first
 *   otherwise            see epd_connect and epd_join */
EPD_API int epd_program_join(const epd_program_group* group, epd_error* error);

/* Says what an alias means by joining a group of joins_by_call, with the alias and so many ranks. Returns EPD_OK if it did,
 * or a code; then it fills `error`. */
typedef int (*epd_program_describe)(const char* alias, int64_t num_ranks, epd_error* error);

/* From now on `describe` is called, in the thread of the call, when the alias of a call has no group and begins with `prefix`;
 * by several threads at once. Both are kept. */
EPD_API void epd_program_describe_with(const char* prefix, epd_program_describe describe);

/* Waits until the ranks held here are in their groups: at once, unless an earlier call reported a loss (of the daemon, say),
 * which makes it join again, up to the forming deadline, once the daemon is back, or unless another thread joins just now. A
 * loss that nobody reported yet is reported here; a stop in order is no loss.
 *   FAILED_PRECONDITION  the alias has no group
 *   otherwise            as of a call: why the session or the group is gone, once per loss */
EPD_API int epd_program_wait(const char* alias, epd_error* error);

/* Where this process's ranks of the alias are. */
enum {
  EPD_PROGRAM_LEFT = 0, /* The alias has no group. */
  EPD_PROGRAM_READY = 1,
  /* The session or the group is gone: a call says why, and the next one joins again. */
  EPD_PROGRAM_LOST = 2,
  EPD_PROGRAM_JOINING = 3,
};

/* One of EPD_PROGRAM_*, and into `epoch`, which may be NULL, the group's as it is formed now, of several domains the newest;
 * 0 before the first join. Does not wait for a join that goes on. */
EPD_API int epd_program_state(const char* alias, uint64_t* epoch);

/* Leaves the alias's groups, if there are any, and ends the session with the last one. Blocks until no call has been under
 * way for 20 ms, at most two seconds; calls that are then still under way fail. */
EPD_API void epd_program_finalize(const char* alias);

/* ---- operations ---- */

/* What a program was compiled for. If the group that the alias means by now has other sizes, the call fails on all ranks
 * with INVALID_ARGUMENT, and the text names the size: the buffers would not fit. */
typedef struct epd_program_sizes {
  size_t struct_size;
  int64_t ranks;
  int64_t experts;
  int64_t local_experts;
  int64_t owners;
  int64_t max_tokens;
  int64_t hidden;        /* 0: the call moves no rows. */
  int64_t recv_capacity; /* At most the group's. */
  int32_t by_rank;
} epd_program_sizes;

/* An execution that has begun, for epd_program_call::begun. The library writes and reads it. */
typedef struct epd_program_begun {
  size_t struct_size;
  uint64_t join; /* 0: it has not begun. */
  uint64_t number;
} epd_program_begun;

/* An operation under way. */
typedef struct epd_program_pending epd_program_pending;

/* Which operation of which program, on which rank. Calls of all ranks with the same identity are one operation, in
 * whatever order they come. Ranks whose programs are not the same one meet by `name`; else the identity is
 * (program, execution, site, occurrence). */
typedef struct epd_program_call {
  size_t struct_size;
  const char* alias;
  int32_t domain;
  int32_t position; /* See epd_program_group::by_rank. */
  /* NULL: by program. Static, and of this operation only: ranks count its uses. */
  const char* name;
  /* A digest of what the ranks' programs have in common, the same on all. */
  uint8_t program[16];
  /* Tells executions of this process apart, whatever the numbers are and however ranks differ in them: the library counts
   * those of a program, per rank. All calls of one execution have the same; `executable` is for frameworks whose compiled
   * programs number their executions independently. 0: an execution of this call alone. */
  uint64_t execution;
  uint64_t executable;
  uint32_t site; /* Which of the program's calls: 0, 1, ... */
  /* Which use of the site in the execution, where loops repeat it: 1, 2, ...; 0: the library counts. */
  uint32_t occurrence;
  const epd_program_sizes* traced; /* NULL: nothing is compared. */
  /* NULL, or for frameworks without compiled programs, where a call (that of a gradient) may belong to an execution that
   * newer ones have overtaken: the first call, whose `execution` is 0, fills it in; later ones bring it back, in any order. */
  epd_program_begun* begun;
  /* NULL, or where a call without `name` stands in its program, for people: no part of its identity. */
  const char* scope;
  /* NULL: an operation's function returns when the operation has ended. Else, for threads that may not block for long, it
   * returns EPD_PENDING once it has waited for other ranks for `wait_ns`, or has to wait for anything else, and *pending is
   * to be given to epd_program_finish, once, in any thread. What this struct and the arguments point to stays until then. */
  epd_program_pending** pending;
  int64_t wait_ns;
} epd_program_call;

/* The rank that calls at this place stand for, without making one. Never blocks.
 *   FAILED_PRECONDITION  the alias has no group
 *   INVALID_ARGUMENT     a rank that others hold (its holder is named), or the program is for another number of ranks */
EPD_API int epd_program_resolve(const epd_program_call* call, uint32_t* rank, epd_error* error);

/* The operations of epd_client.h, on memory of the host: `rank` and `key` of their arguments are not read. Each blocks
 * until the operation has ended on all ranks, and first joins again if an earlier call reported a loss. Errors, besides the
 * operations':
 *   FAILED_PRECONDITION  the alias has no group; or two executions of one program are under way on a rank, which nobody
 *                        could tell apart (all ranks are told)
 *   INVALID_ARGUMENT     as of epd_program_resolve; or other sizes, see epd_program_sizes (all ranks are told)
 *   ABORTED              this execution began before the session was lost: run it again
 *   otherwise            why the session or the group is gone, once per loss */
EPD_API int epd_program_prepare(const epd_program_call* call, const epd_prepare_args* args,
                                epd_error* error);
EPD_API int epd_program_dispatch(const epd_program_call* call, const epd_scatter_args* args,
                                 epd_error* error);
EPD_API int epd_program_combine(const epd_program_call* call, const epd_gather_args* args,
                                epd_error* error);
EPD_API int epd_program_dispatch_backward(const epd_program_call* call, const epd_gather_args* args,
                                          epd_error* error);
EPD_API int epd_program_combine_backward(const epd_program_call* call, const epd_scatter_args* args,
                                         epd_error* error);

EPD_API int epd_program_ragged_all_to_all(const epd_program_call* call, const epd_ragged_args* args,
                                          epd_error* error);

/* Waits for the end of an operation that was left pending, and returns what its function would have. */
EPD_API int epd_program_finish(epd_program_pending* pending, epd_error* error);

/* Waits until all ranks of the domain have come to this call: an exchange of no tokens. Blocks and fails as an operation. */
EPD_API int epd_program_handshake(const epd_program_call* call, epd_error* error);

/* Takes this rank's place in an operation that it cannot make: it fails with `code` and `text` on every rank. Returns
 * `code`, or why the operation had failed before. */
EPD_API int epd_program_refuse(const epd_program_call* call, int32_t code, const char* text,
                               epd_error* error);

/* Runs `work(context)` on a thread of its own, at once, and returns: for frameworks whose own threads must not block in an
 * operation. Two operations that two ranks begin in different order need two threads, so none ever queues behind another
 * one; idle threads are used again.
 *   RESOURCE_EXHAUSTED  the system gives no further thread; `work` does not run */
EPD_API int epd_program_start(void (*work)(void* context), void* context, epd_error* error);

/* An error's text in the words of Python's APIs, cut at `words_bytes`; returns its length. See api_words.h. */
EPD_API size_t epd_program_words(int code, const char* text, char* words, size_t words_bytes);

/* What to do about it: "call again", "connect again" or "no". */
EPD_API const char* epd_program_retry(int code, const char* text);

/* What of CPython decides about Ctrl-C, as addresses of its C API, since nothing here links it: all of one running interpreter.
 * Each thread that waits asks, within a second of a SIGINT, and as each asks for itself: `check_signals` runs the program's handlers
 * if it is the main thread. What they raise is raised there once the wait has ended (CANCELLED). Where they raise nothing,
 * `ends_wait` is called with the interpreter's lock held: EPD_INTERRUPT_ENDS ends the wait, EPD_INTERRUPT_RAISES does and raises
 * KeyboardInterrupt in the main thread, 0 leaves it to the handler of the program: the wait goes on until the second SIGINT. */
typedef struct {
  size_t struct_size;
  int (*ensure)(void);        /* PyGILState_Ensure */
  void (*release)(int state); /* PyGILState_Release */
  int (*check_signals)(
      void); /* PyErr_CheckSignals; it lies in the same object as CPython's handler of signals. */
  void (*fetch)(void** type, void** value, void** traceback);  /* PyErr_Fetch */
  void (*restore)(void* type, void* value, void* traceback);   /* PyErr_Restore */
  int (*add_pending_call)(int (*call)(void*), void* argument); /* Py_AddPendingCall */
  void (*set_none)(void* type);                                /* PyErr_SetNone */
  void* keyboard_interrupt;                                    /* PyExc_KeyboardInterrupt */
  int (*ends_wait)(void);
  uint64_t*
      num_interrupts; /* Of the process, for ever: shared by all libraries with this interface in it. */
} epd_program_interpreter;

#define EPD_INTERRUPT_ENDS 1
#define EPD_INTERRUPT_RAISES 2

/* From now on waits see SIGINT whoever handles it, and since when: notebooks and event loops install handlers of their own. NULL: the
 * interpreter ends; returns once nobody asks it any more, so call it without its lock. From then on each SIGINT ends all waits.
 * A struct that lacks a field is not taken. */
EPD_API void epd_program_set_interpreter(const epd_program_interpreter* interpreter);

/* epd_handle_mem_size, where the C library inside is private. */
EPD_API size_t epd_program_handle_mem_size(uint32_t num_ranks, uint32_t num_experts,
                                           uint32_t max_tokens_per_rank, uint32_t top_k);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EPD_CLIENT_PROGRAM_EPD_PROGRAM_H_ */
