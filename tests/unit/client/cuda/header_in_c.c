/* The header is C: this compiles as C99, and a rank's five operations go into a stream through it. */
#include "tests/unit/client/cuda/header_in_c.h"

#include "client/cuda/epd_stream.h"

static const epd_stream_operation kOperations[kNumSites] = {
    EPD_STREAM_PREPARE, EPD_STREAM_DISPATCH, EPD_STREAM_COMBINE, EPD_STREAM_DISPATCH_BACKWARD,
    EPD_STREAM_COMBINE_BACKWARD};

int AddSitesFromC(epd_stream_group* streams, const epd_stream_call* sizes, epd_stream_site** sites,
                  epd_error* error) {
  int i;
  for (i = 0; i < kNumSites; ++i) {
    epd_stream_call call = *sizes;
    int code;
    call.operation = kOperations[i];
    call.ordinal = (uint32_t)i;
    if ((code = epd_stream_add_site(streams, &call, &sites[i], error)) != EPD_OK) return code;
  }
  return EPD_OK;
}

int PutFromC(epd_stream_site** sites, const ProgramBuffers* b, void* stream, epd_error* error) {
  int i;
  for (i = 0; i < kNumSites; ++i) {
    epd_stream_buffers buffers = {.struct_size = sizeof buffers};
    int code;
    buffers.handle_mem = b->plan;
    if (kOperations[i] == EPD_STREAM_PREPARE) {
      buffers.topk_idx = b->topk_idx;
      buffers.idx_bytes = 8;
      buffers.token_counts = b->token_counts;
      buffers.num_token_counts = b->num_token_counts;
      buffers.total_recv = b->total_recv;
    } else if (kOperations[i] == EPD_STREAM_DISPATCH) {
      buffers.rows = b->tokens;
      buffers.weights = b->weights;
      buffers.out_rows = b->recv;
      buffers.out_weights = b->recv_weights;
    } else if (kOperations[i] == EPD_STREAM_COMBINE) {
      buffers.rows = b->recv;
      buffers.out_rows = b->combined;
    } else if (kOperations[i] == EPD_STREAM_DISPATCH_BACKWARD) {
      buffers.rows = b->recv;
      buffers.weights = b->recv_weights;
      buffers.out_rows = b->grad_tokens;
      buffers.out_weights = b->grad_weights;
    } else {
      buffers.rows = b->combined;
      buffers.out_rows = b->grad_recv;
    }
    if ((code = epd_stream_put(sites[i], &buffers, stream, error)) != EPD_OK) return code;
  }
  return EPD_OK;
}

void EndFromC(epd_stream_group* streams, epd_stream_site** sites) {
  int i;
  for (i = 0; i < kNumSites; ++i) epd_stream_remove_site(sites[i]);
  epd_stream_close(streams);
  epd_stream_remove_site(NULL);
  epd_stream_close(NULL);
}
