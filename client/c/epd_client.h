/* libepd_client: attach to the node's epd, join a group, and exchange tokens between its ranks. Long because it is the whole reference.
 *
 *   epd_error error = {sizeof error};
 *   epd_connect_args connect = {sizeof connect};
 *   epd_client* client;
 *   if (epd_connect(&connect, &client, &error) != EPD_OK) die(error.message);
 *   epd_group_spec spec = {sizeof spec};            // name, num_ranks, num_experts, ...
 *   epd_join_args join = {sizeof join}; join.spec = &spec; join.ranks = &rank; join.num_ranks = 1;
 *   epd_group* group;
 *   if (epd_join(client, &join, &group, &error) != EPD_OK) die(error.message);
 *   ... epd_prepare, epd_dispatch, (the experts), epd_combine ...
 *   epd_leave(group, &error);
 *   epd_disconnect(client);
 *
 * Every struct starts with its own size, set by the caller; zero means the default for every other field.
 * Every call returns EPD_OK or an absl/gRPC status code and then fills `error` (which may be NULL).
 *
 * Threads: all functions may be called from any thread; operations block the calling thread until they end, and
 * every operation ends: with its result, or with the cause, the same on every rank of the group. The library starts
 * no thread before the first operation; then one watchdog per client, which ends all waits when epd is gone.
 * Fork: a forked child must not use its parent's objects (FAILED_PRECONDITION); it connects anew.
 *
 * When the daemon is gone: calls in flight end within a second (UNAVAILABLE);
 * every later call of that client, and epd_check, says why. Then: epd_leave, epd_disconnect, epd_connect, epd_join.
 *
 * Environment: EPD_SOCKET (the socket to use), EPD_SERVER_UID (a uid that the daemon may have, as its clients' containers
 * see it; it trusts whoever sets it), EPD_TENANT (the tenant of groups whose spec names none), EPD_AUTOSTART=0 (never
 * start a private daemon), EPD_PROGRAM (the epd to start: of this user or root, and writable by nobody else),
 * XDG_RUNTIME_DIR (an absolute path of a folder of this user: the private one's lies in it; not set: /tmp/epd-UID), EPD_DIRECT ("off": all rows go through the worker), EPD_SPIN_US (how long a wait spins before it sleeps; default: 50 where
 * this process may use more CPUs than the group has ranks, else 0), EPD_STACKS ("yes": on SIGUSR2 from its own user this process
 * writes what its threads do for `epctl support-archive`; default: SIGUSR2 is left alone).
 *
 * Errors of every operation (the outputs are then zeros):
 *   INVALID_ARGUMENT     an argument is wrong on some rank, or the ranks' calls do not agree; the text says which
 *   FAILED_PRECONDITION  the group drains, or was left
 *   RESOURCE_EXHAUSTED   receive capacity (without drop), staging, or too many outstanding calls
 *   ABORTED              stale epoch or plan: prepare again and repeat
 *   UNAVAILABLE          a rank, a worker or the daemon is gone; the text names it. While a rank is gone the next
 *                        tries are held up for 100 ms each, or until it is back
 *   DEADLINE_EXCEEDED    a rank is late; the text names the missing ranks
 *   DATA_LOSS            a corrupt plan or staging
 * Text: "[epd:CODE] group=... epoch=... rank=... phase=...: what happened; what to do".
 */
#ifndef EPD_CLIENT_C_EPD_CLIENT_H_
#define EPD_CLIENT_C_EPD_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPD_API __attribute__((visibility("default")))
#define EPD_CLIENT_VERSION "0.1.0"

enum { EPD_OK = 0 }; /* Other codes are those of absl::StatusCode. */

typedef enum epd_dtype {
  EPD_DTYPE_UNSPECIFIED = 0,
  EPD_DTYPE_FLOAT32 = 1,
  EPD_DTYPE_BFLOAT16 = 2,
  EPD_DTYPE_FLOAT16 = 3,
  EPD_DTYPE_OPAQUE_BIT = 0x10000, /* See EPD_DTYPE_OPAQUE. */
} epd_dtype;

/* Who moves a group's rows: the daemon's worker, or the ranks themselves (on a GPU in the stream of the call). */
typedef enum epd_executor {
  EPD_EXECUTOR_DEFAULT = 0, /* The daemon's choice for the backend. */
  EPD_EXECUTOR_WORKER = 1,
  EPD_EXECUTOR_CLIENT = 2
} epd_executor;

/* Rows of other elements, which are only moved: dispatch and combine backward. `width`: 1, 2, 4 or 8 bytes; `tag`, 0 to
 * 255, tells types of one width apart and must be the same on all ranks. */
#define EPD_DTYPE_OPAQUE(width, tag) ((epd_dtype)(EPD_DTYPE_OPAQUE_BIT | (width) << 8 | (tag)))

typedef struct epd_error {
  size_t struct_size;
  int32_t code;
  char message[4096];
} epd_error;

typedef struct epd_client epd_client; /* One session with one epd. */
typedef struct epd_group epd_group;   /* This session's ranks in one group. */

EPD_API const char* epd_client_version(void);

/* ---- session ---- */

typedef struct epd_connect_args {
  size_t struct_size;
  /* NULL: EPD_SOCKET, else /run/epd/epd.sock, else this user's private one, whose path does the same where EPD_SOCKET
   * is not set. */
  const char* socket_path;
  const char* client_name; /* NULL: the process's command line. For people. */
  int64_t timeout_ms;      /* 0: 10 s, the start of a private daemon included. */
  int32_t no_autostart;    /* 1: never start a private daemon. EPD_AUTOSTART=0 does the same. */
  /* The epd to start; NULL: EPD_PROGRAM, else the one installed with this library. */
  const char* daemon_path;
} epd_connect_args;

/* Connects, and starts a private daemon for this user if none is found and that is allowed.
 *   UNAVAILABLE        no daemon, or it does not answer; the text says where it was looked for and what to do
 *   FAILED_PRECONDITION  none runs and no epd binary was found to start; set EPD_PROGRAM or EPD_SOCKET
 *   DATA_LOSS          what answers is no epd, or one of another layout
 *   PERMISSION_DENIED  who listens there, or who made the folder, is none of: this user, root, a server_user of
 *                      /etc/epd/client.conf, EPD_SERVER_UID; nothing was sent
 *   UNIMPLEMENTED      no common protocol version; both are named
 *   INVALID_ARGUMENT   the socket path is longer than 107 bytes, or XDG_RUNTIME_DIR is no absolute path
 * XDG_RUNTIME_DIR: also FAILED_PRECONDITION (no such folder, read-only), PERMISSION_DENIED (another user's), RESOURCE_EXHAUSTED (full).
 * FAILED_PRECONDITION, too: a private daemon that ended at once (with its last line), and a stale mount. */
EPD_API int epd_connect(const epd_connect_args* args, epd_client** client, epd_error* error);

/* Finds the socket that is there, without a word to it, for programs that speak gRPC to the one beside it: `asked`, NULL: EPD_SOCKET's,
 * else the node's, else this user's private one, else the node's. `path_bytes` counts the ending zero.
 *   FAILED_PRECONDITION  none can ever answer there: a stale mount, or something that is no socket
 *   RESOURCE_EXHAUSTED   `path_bytes` is too small; others: as epd_connect, of XDG_RUNTIME_DIR */
EPD_API int epd_find_socket(const char* asked, char* path, size_t path_bytes, epd_error* error);

/* Ends the session and frees `client`; groups still joined are left. NULL is fine. */
EPD_API void epd_disconnect(epd_client* client);

/* EPD_OK while the session lives; else why it ended. Never blocks. */
EPD_API int epd_check(epd_client* client, epd_error* error);

/* The path of the socket in use, valid until epd_disconnect. */
EPD_API const char* epd_socket_path(const epd_client* client);

/* ---- group ---- */

typedef struct epd_group_spec {
  size_t struct_size;
  const char* name;
  /* One run of the job; ranks of different instances never meet. NULL: EPD_INSTANCE, else EPD_JOB, else the scheduler's job
   * and step or mpirun's or torchrun's word for the launch, else "". So two launches of one program do not meet; processes of
   * different launches that belong together give one instance, or have one EPD_JOB. */
  const char* instance;
  /* NULL: EPD_TENANT, else "". A group serves several tenants, each a set of sessions of its own, one per rank, which exchange only
   * with each other. They share the group's ranks, communicator and staging budget, so their specs must be equal but
   * for `instance` and `tenant`; no tenant sees another's bytes, and none fails because another does. */
  const char* tenant;
  uint32_t num_ranks;
  uint32_t num_experts;
  /* [num_experts] or NULL: contiguous blocks of num_experts / num_ranks. */
  const uint32_t* expert_owner;
  uint32_t max_tokens_per_rank;
  uint32_t recv_capacity_per_rank; /* Slots. */
  uint32_t hidden;                 /* Elements. */
  uint32_t top_k;                  /* Largest of any call; 0: 128. */
  /* Rows of a call have at most `hidden` times its bytes, opaque ones 8 x `hidden`. */
  epd_dtype max_token_dtype;
  int32_t drop_on_overflow;
  epd_executor executor;
  /* NULL or "auto": "cuda" where the join names a GPU as the device of each of its ranks, else the CPU's. */
  const char* backend;
  /* Deadlines; 0: the daemon's defaults (20 s, 10 min, 30 s, 5 min). */
  int64_t warn_after_ms;
  int64_t absent_ms;
  int64_t undecided_ms;
  int64_t form_ms;
} epd_group_spec;

/* Which group's plans (handle_mem). Plans of another group, or from before it formed anew, are refused. */
typedef struct epd_plans {
  uint64_t group_id;
  uint64_t epoch;
} epd_plans;

typedef struct epd_join_args {
  size_t struct_size;
  const epd_group_spec* spec;
  const uint32_t* ranks; /* [num_ranks] this process's ranks. */
  size_t num_ranks;
  /* [num_ranks] or NULL. "cuda:1": the GPU that a rank is on, as this process counts it. Then the group is one of GPUs,
   * unless its backend is "cpu", and so are all other ranks. Other words are for people. */
  const char* const* devices;
  uint64_t min_epoch;  /* The group's epoch will be above it. */
  int64_t deadline_ms; /* 0: spec->form_ms. */
  /* NULL or a name of this program, for people: at most 200 printable bytes, no spaces. */
  const char* program;
  const char* metadata; /* NULL or anything, for people: at most 256 printable ASCII bytes. */
  /* Zeros, or epd_group_info::plans of the group that this one goes on for after a stop in order: plans of that one are
   * then good in this one, until it forms anew. */
  epd_plans plans;
} epd_join_args;

/* Whether the epd of a node that serves the group stops in order (for an upgrade, say), and the group with it. What fails
 * from EPD_GROUP_STOPS on has happened on no rank. So nothing is lost: wait for EPD_GROUP_STOPPED, leave, join again with
 * epd_join_args::plans, on a new session where the old one has ended, until the daemon is back, and repeat the operations
 * that failed, on all ranks. */
typedef enum epd_group_stopping {
  EPD_GROUP_STAYS = 0,
  EPD_GROUP_STOPS = 1, /* Operations under way end, new ones are refused. */
  EPD_GROUP_STOPPED = 2
} epd_group_stopping;

typedef struct epd_group_info {
  size_t struct_size;
  uint64_t group_id; /* Of this tenant of the group. */
  uint64_t epoch;
  uint64_t formation;
  uint32_t num_ranks;
  uint32_t num_experts;
  int32_t stopping; /* An epd_group_stopping. */
  epd_plans plans;
} epd_group_info;

/* Takes ranks of a group and waits until the group is READY. Collective over the group's ranks.
 *   INVALID_ARGUMENT   a bad spec, or it differs from another rank's (fields, values and ranks are named), or a rank
 *                      is taken twice
 *   ALREADY_EXISTS     a living session of this group holds the rank; it is named
 *   DEADLINE_EXCEEDED  not all ranks came; the text lists arrived, missing and dead ones
 * Another tenant of the group with another spec, or with a rank on another node, is INVALID_ARGUMENT, too.
 * Ranks may be on several nodes, whose epds are of one cluster. */
EPD_API int epd_join(epd_client* client, const epd_join_args* args, epd_group** group,
                     epd_error* error);

/* Gives the ranks back and frees `group`. Operations in flight in other threads fail first. */
EPD_API int epd_leave(epd_group* group, epd_error* error);

EPD_API int epd_group_get_info(epd_group* group, epd_group_info* info);

/* EPD_OK while the group may be called, or is being formed anew; else why it has ended for this process: epd_leave, then
 * epd_join again. FAILED_PRECONDITION: an operator closed it. Never blocks. */
EPD_API int epd_group_check(epd_group* group, epd_error* error);

/* Number of a new execution of `program` (16 bytes, a digest that is equal on all ranks) on `rank`: 0, 1, 2, ... since
 * the join; for an execution that tries again while the group refuses calls, a number of which every call fails. For
 * callers that number whole programs; callers that name their operations need not call it. */
EPD_API uint64_t epd_begin_execution(epd_group* group, uint32_t rank, const uint8_t program[16]);

/* ---- operations ---- */

#define EPD_EXECUTION_NEXT UINT64_MAX

/* Identity of an operation: calls of all ranks with the same identity are one operation, in whatever order they come.
 * Either `name` (static, the same on all ranks; `execution` counts its uses, EPD_EXECUTION_NEXT: the library counts per
 * rank), or `program` (not all zeros) with the execution's number, the ordinal of the call site and its occurrence in the
 * execution. Beside a program `name` is no part of the identity: it says to people where in it the call stands (its last 31
 * bytes at most are shown), and may be NULL. */
typedef struct epd_key {
  size_t struct_size;
  const char* name;
  uint8_t program[16];
  uint64_t execution;
  uint32_t ordinal;
  uint32_t occurrence;
} epd_key;

/* Bytes of one rank's routing plan ("handle_mem"), the same on all ranks. Needs no daemon. */
EPD_API size_t epd_handle_mem_size(uint32_t num_ranks, uint32_t num_experts,
                                   uint32_t max_tokens_per_rank, uint32_t top_k);

typedef struct epd_prepare_args {
  size_t struct_size;
  uint32_t rank;
  epd_key key;
  const void* topk_idx; /* [num_tokens, top_k] int32 or int64; negative: no route. */
  uint32_t idx_bytes;   /* 4 or 8. */
  uint64_t num_tokens;
  uint32_t top_k;
  uint32_t alignment;    /* Of the experts' zones, in slots: a power of two; 0 reads as 1. */
  int32_t* token_counts; /* out [experts of this rank] padded zone lengths, before any drop. */
  int32_t* total_recv;   /* out [1] their sum. */
  void* handle_mem;      /* out [handle_mem_bytes] */
  size_t handle_mem_bytes;
} epd_prepare_args;
EPD_API int epd_prepare(epd_group* group, const epd_prepare_args* args, epd_error* error);

/* An array whose rows travel side by side with others', in one exchange under one plan: the scales of quantised rows. */
typedef struct epd_more_rows {
  epd_dtype dtype;    /* Any. */
  uint32_t hidden;    /* Elements of a row, 1 or more. */
  const void* tokens; /* [num_tokens, hidden] */
  void* recv_tokens;  /* out [recv_capacity, hidden] */
} epd_more_rows;
#define EPD_MAX_MORE_ROWS 63

typedef struct epd_scatter_args {
  size_t struct_size;
  uint32_t rank;
  epd_key key;
  const void* handle_mem;
  size_t handle_mem_bytes;
  uint32_t top_k;
  uint32_t alignment;
  epd_dtype dtype; /* Of the rows: any. */
  uint32_t hidden; /* Elements of a row. */
  uint64_t num_tokens;
  /* [num_tokens, hidden]; combine backward: the gradient of combine's output. */
  const void* tokens;
  const float* topk_weights; /* [num_tokens, top_k]; combine backward: NULL. */
  uint64_t recv_capacity;    /* Slots. */
  /* out [recv_capacity, hidden]; combine backward: the gradient of expert_out. */
  void* recv_tokens;
  float* recv_topk_weights; /* out [recv_capacity]; combine backward: NULL. */
  /* [num_more], or NULL with 0: further arrays, at most EPD_MAX_MORE_ROWS, the same dtypes and sizes on all ranks. The rows
   * of all of them together have at most as many bytes as 8 times the group's hidden. */
  const epd_more_rows* more;
  uint32_t num_more;
} epd_scatter_args;
/* Sends each token's row to its experts' ranks. Padding slots and the tail are zeros. */
EPD_API int epd_dispatch(epd_group* group, const epd_scatter_args* args, epd_error* error);
EPD_API int epd_combine_backward(epd_group* group, const epd_scatter_args* args, epd_error* error);

typedef struct epd_gather_args {
  size_t struct_size;
  uint32_t rank;
  epd_key key;
  const void* handle_mem;
  size_t handle_mem_bytes;
  uint32_t top_k;
  uint32_t alignment;
  epd_dtype dtype;        /* float32, bfloat16 or float16. */
  uint32_t hidden;        /* Elements of a row. */
  uint64_t recv_capacity; /* Slots of expert_rows. */
  /* [recv_capacity, hidden] expert_out, or the gradient of recv_tokens. */
  const void* expert_rows;
  /* [recv_capacity] gradients of the weights; combine: NULL. */
  const float* recv_topk_weights;
  uint64_t num_tokens;
  /* out [num_tokens, hidden]: sums over k, in fp32, in k order, rounded once. */
  void* tokens;
  float* topk_weights; /* out [num_tokens, top_k]; combine: NULL. */
} epd_gather_args;
/* Sums each token's expert rows back. A dropped route contributes nothing. */
EPD_API int epd_combine(epd_group* group, const epd_gather_args* args, epd_error* error);
EPD_API int epd_dispatch_backward(epd_group* group, const epd_gather_args* args, epd_error* error);

typedef struct epd_ragged_args {
  size_t struct_size;
  uint32_t rank;
  epd_key key;
  epd_dtype dtype; /* Of the rows: any. Compared between the ranks. */
  uint64_t row_bytes;
  const void* operand; /* [operand_rows] */
  uint64_t operand_rows;
  const void* output; /* [output_rows] */
  uint64_t output_rows;
  /* 4 or 8: int32 or int64 in the arrays below, [num_ranks, slices_per_rank]. */
  uint32_t index_bytes;
  uint32_t slices_per_rank;
  const void* input_offsets;  /* Of each slice that is sent, in `operand`. */
  const void* send_sizes;     /* Their rows. */
  const void* output_offsets; /* Where each lands, in the receiver's output. */
  const void* recv_sizes;     /* Rows of each slice that comes. */
  /* out [output_rows] `output`, with the slices that came; not `output` itself. */
  void* result;
  /* out [num_ranks, slices_per_rank] or NULL: where each slice that came landed, and its offset in its sender's operand. */
  void* landing_offsets;
  void* source_offsets;
  /* 1: rows of float32, bfloat16 or float16 that land on each other are added, in fp32, by rank. */
  int32_t adds;
} epd_ragged_args;
/* Sends slices of rows to offsets that the sender gives. Offsets of empty slices mean nothing. Executor client; the group's
 * experts and sizes do not matter.
 *   INVALID_ARGUMENT  also: negative, or outside of operand or output; slices that overlap; a recv_size that is not what the
 *                     sender sends. The same on all ranks. */
EPD_API int epd_ragged_all_to_all(epd_group* group, const epd_ragged_args* args, epd_error* error);

typedef struct epd_refuse_args {
  size_t struct_size;
  uint32_t rank;
  epd_key key;
  int32_t code;     /* Not EPD_OK. */
  const char* text; /* What is wrong and what to do; the library puts the place before it. */
} epd_refuse_args;
/* Takes the place of an operation that this rank cannot make, so that no rank waits for it: the operation, and the
 * execution that it is in, fails on every rank with `code` and `text`. Blocks as an operation does. Returns `code`, or
 * why the execution had failed before. */
EPD_API int epd_refuse(epd_group* group, const epd_refuse_args* args, epd_error* error);

typedef enum epd_operation {
  EPD_OPERATION_PREPARE = 1,
  EPD_OPERATION_DISPATCH = 2,
  EPD_OPERATION_COMBINE = 3,
  EPD_OPERATION_DISPATCH_BACKWARD = 4,
  EPD_OPERATION_COMBINE_BACKWARD = 5,
  EPD_OPERATION_RAGGED_ALL_TO_ALL = 6
} epd_operation;
typedef struct epd_pending epd_pending;
enum { EPD_PENDING = -1 };
typedef struct epd_try_args {
  size_t struct_size;
  epd_operation operation;
  const void* args; /* epd_<operation>_args; copied, but for the arrays that it names. */
  int64_t wait_ns;  /* Negative: as long as it takes. */
} epd_try_args;
/* For threads that may not block for long: an operation as its function makes it, but where it still waits for other ranks
 * after `wait_ns` EPD_PENDING is returned, and epd_finish is to be called with *pending, once, in any thread, whatever becomes
 * of the result: other ranks may have it by then. Arrays that the arguments name must stay until the operation has ended.
 * Errors as of the operation's function; *pending is then NULL. */
EPD_API int epd_try(epd_group* group, const epd_try_args* args, epd_pending** pending,
                    epd_error* error);
/* Waits for the end of the operation. Returns, with the errors, what its function would have. */
EPD_API int epd_finish(epd_pending* pending, epd_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* EPD_CLIENT_C_EPD_CLIENT_H_ */
