/* A program of five operations, in C. */
#ifndef EPD_TESTS_UNIT_CLIENT_CUDA_HEADER_IN_C_H_
#define EPD_TESTS_UNIT_CLIENT_CUDA_HEADER_IN_C_H_

#include "client/cuda/epd_stream.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { kNumSites = 5 };

typedef struct ProgramBuffers {
  void* plan;
  const int64_t* topk_idx;
  int32_t* token_counts;
  uint64_t num_token_counts;
  int32_t* total_recv;
  const float* tokens;
  const float* weights;
  float* recv;
  float* recv_weights;
  float* combined;
  float* grad_tokens;
  float* grad_weights;
  float* grad_recv;
} ProgramBuffers;

int AddSitesFromC(epd_stream_group* streams, const epd_stream_call* sizes, epd_stream_site** sites,
                  epd_error* error);
int PutFromC(epd_stream_site** sites, const ProgramBuffers* b, void* stream, epd_error* error);
void EndFromC(epd_stream_group* streams, epd_stream_site** sites);

#ifdef __cplusplus
}
#endif

#endif /* EPD_TESTS_UNIT_CLIENT_CUDA_HEADER_IN_C_H_ */
