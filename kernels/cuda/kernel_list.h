// Every kernel of the image: its name there, and the step that it runs.
//
// Widths are those of fan_out.h: 16 bytes for rows that allow it, else what divides row_bytes. The
// bulk variants move rows of 16-byte words through shared memory (bulk_mover.h).
#pragma once

#include "kernels/cuda/build_plan.h"
#include "kernels/cuda/bulk_mover.h"
#include "kernels/cuda/copy_rows.h"
#include "kernels/cuda/gather_reduce.h"
#include "kernels/cuda/land_rows.h"
#include "kernels/cuda/of_each.h"
#include "kernels/cuda/pack_rows.h"
#include "kernels/cuda/plan_words.h"
#include "kernels/cuda/push_direct.h"
#include "kernels/cuda/push_landing.h"
#include "kernels/cuda/seal_plan.h"
#include "kernels/cuda/take_results.h"
#include "kernels/cuda/use_words.h"

// X(name, step)
#define EPD_CUDA_PLAN_KERNELS(X)                           \
  X(epd_count_experts, CountTiles<ExpertColumn>)           \
  X(epd_count_destinations, CountTiles<DestinationColumn>) \
  X(epd_sum_tiles, SumTiles)                               \
  X(epd_place_experts, PlaceExperts)                       \
  X(epd_place_routes, PlaceRoutes)                         \
  X(epd_sum_plan, SumPlan)                                 \
  X(epd_finish_plan, FinishPlan)                           \
  X(epd_verify_plan, VerifyPlan)                           \
  X(epd_copy_plans, OfEach<CopyPlan>)                      \
  X(epd_sum_plans, OfEach<SumPlan>)                        \
  X(epd_verify_plans, OfEach<VerifyPlan>)                  \
  X(epd_tell_plan, TellPlan)                               \
  X(epd_take_answer, TakeAnswer)                           \
  X(epd_take_results, TakeResults)                         \
  X(epd_place_landings, PlaceLandings)                     \
  X(epd_open_landings, OpenLandings)                       \
  X(epd_index_landings, IndexLandings)                     \
  X(epd_mark_landings, MarkLandings)                       \
  X(epd_verify_marks, VerifyMarks)                         \
  X(epd_find_packed, FindPacked)                           \
  X(epd_check_table, CheckTable)

// One set per mover.
#define EPD_CUDA_MOVE_KERNELS(X, suffix, ...)                  \
  X(epd_push_direct_##suffix, PushDirect<__VA_ARGS__>)         \
  X(epd_push_landings_##suffix, PushLandings<__VA_ARGS__>)     \
  X(epd_expand_landings_##suffix, ExpandLandings<__VA_ARGS__>) \
  X(epd_pack_rows_##suffix, PackRows<__VA_ARGS__>)             \
  X(epd_copy_rows_##suffix, CopyRows<__VA_ARGS__>)

#define EPD_CUDA_ZERO_KERNELS(X)                       \
  X(epd_zero_padding_16, ZeroPadding<VectorMover<16>>) \
  X(epd_zero_padding_4, ZeroPadding<VectorMover<4>>)   \
  X(epd_zero_padding_2, ZeroPadding<VectorMover<2>>)   \
  X(epd_zero_padding_1, ZeroPadding<VectorMover<1>>)

#define EPD_CUDA_GATHER_KERNELS(X)                                 \
  X(epd_gather_float32_16, GatherReduce<DataType::kFloat32, 16>)   \
  X(epd_gather_float32_4, GatherReduce<DataType::kFloat32, 4>)     \
  X(epd_gather_bfloat16_16, GatherReduce<DataType::kBfloat16, 16>) \
  X(epd_gather_bfloat16_4, GatherReduce<DataType::kBfloat16, 4>)   \
  X(epd_gather_bfloat16_2, GatherReduce<DataType::kBfloat16, 2>)   \
  X(epd_gather_float16_16, GatherReduce<DataType::kFloat16, 16>)   \
  X(epd_gather_float16_4, GatherReduce<DataType::kFloat16, 4>)     \
  X(epd_gather_float16_2, GatherReduce<DataType::kFloat16, 2>)

#define EPD_CUDA_KERNELS(X)                     \
  EPD_CUDA_PLAN_KERNELS(X)                      \
  EPD_CUDA_MOVE_KERNELS(X, 16, VectorMover<16>) \
  EPD_CUDA_MOVE_KERNELS(X, 4, VectorMover<4>)   \
  EPD_CUDA_MOVE_KERNELS(X, 2, VectorMover<2>)   \
  EPD_CUDA_MOVE_KERNELS(X, 1, VectorMover<1>)   \
  EPD_CUDA_MOVE_KERNELS(X, bulk, BulkMover)     \
  EPD_CUDA_ZERO_KERNELS(X)                      \
  EPD_CUDA_GATHER_KERNELS(X)
