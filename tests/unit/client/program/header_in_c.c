/* The header is C: this compiles as C99, joins, exchanges and leaves through it. */
#include <string.h>

#include "client/program/epd_program.h"

int JoinFromC(const char* alias, uint32_t ranks, epd_error* error);
int ExchangeFromC(const char* alias, int32_t position, int32_t* total_recv, float* rows,
                  epd_error* error);

enum { kHidden = 2, kCapacity = 4 };

int JoinFromC(const char* alias, uint32_t ranks, epd_error* error) {
  epd_program_rank held[8];
  epd_group_spec spec = {.struct_size = sizeof spec};
  epd_program_group group = {.struct_size = sizeof group};
  uint32_t rank;
  spec.num_ranks = spec.num_experts = ranks;
  spec.max_tokens_per_rank = 1;
  spec.recv_capacity_per_rank = kCapacity;
  spec.hidden = kHidden;
  for (rank = 0; rank < ranks; ++rank) {
    held[rank].struct_size = sizeof held[rank];
    held[rank].domain = 0;
    held[rank].position = rank;
    held[rank].device = "cpu";
  }
  group.alias = alias;
  group.job = "c";
  group.spec = &spec;
  group.local_experts = 1;
  group.held = held;
  group.num_held = ranks;
  return epd_program_join(&group, error);
}

/* One token of this rank to expert 0 and back, whose row is {position + 1, 0}. */
int ExchangeFromC(const char* alias, int32_t position, int32_t* total_recv, float* rows,
                  epd_error* error) {
  const int32_t topk_idx[1] = {0};
  const float weights[1] = {1};
  float token[kHidden] = {0}, received[kCapacity * kHidden], received_weights[kCapacity];
  unsigned char handle_mem[4096];
  int32_t token_counts[1];
  epd_program_call call = {.struct_size = sizeof call};
  epd_prepare_args prepare = {.struct_size = sizeof prepare};
  epd_scatter_args scatter = {.struct_size = sizeof scatter};
  epd_gather_args gather = {.struct_size = sizeof gather};
  int code;
  call.alias = alias;
  call.position = position;
  call.name = "c/prepare";
  prepare.topk_idx = topk_idx;
  prepare.idx_bytes = 4;
  prepare.num_tokens = prepare.top_k = 1;
  prepare.token_counts = token_counts;
  prepare.total_recv = total_recv;
  prepare.handle_mem = handle_mem;
  prepare.handle_mem_bytes = sizeof handle_mem;
  if ((code = epd_program_prepare(&call, &prepare, error)) != EPD_OK) return code;
  token[0] = (float)position + 1;
  call.name = "c/dispatch";
  scatter.handle_mem = gather.handle_mem = handle_mem;
  scatter.handle_mem_bytes = gather.handle_mem_bytes = sizeof handle_mem;
  scatter.top_k = gather.top_k = 1;
  scatter.dtype = gather.dtype = EPD_DTYPE_FLOAT32;
  scatter.hidden = gather.hidden = kHidden;
  scatter.num_tokens = gather.num_tokens = 1;
  scatter.recv_capacity = gather.recv_capacity = kCapacity;
  scatter.tokens = token;
  scatter.topk_weights = weights;
  scatter.recv_tokens = received;
  scatter.recv_topk_weights = received_weights;
  if ((code = epd_program_dispatch(&call, &scatter, error)) != EPD_OK) return code;
  call.name = "c/combine";
  gather.expert_rows = received;
  gather.tokens = rows;
  return epd_program_combine(&call, &gather, error);
}
