// Every kernel of the image: its name there, and the step that it runs.
//
// Widths are those of fan_out.h: 16 bytes for rows that allow it, else what divides row_bytes. The
// bulk variants move rows of 16-byte words through shared memory (bulk_mover.h).
#pragma once

#include "kernels/cuda/build_plan.h"
#include "kernels/cuda/bulk_mover.h"
#include "kernels/cuda/copy_rows.h"
#include "kernels/cuda/gather_counts.h"
#include "kernels/cuda/gather_reduce.h"
#include "kernels/cuda/land_rows.h"
#include "kernels/cuda/of_each.h"
#include "kernels/cuda/pack_rows.h"
#include "kernels/cuda/plan_words.h"
#include "kernels/cuda/push_direct.h"
#include "kernels/cuda/push_landing.h"
#include "kernels/cuda/read_rows.h"
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
  X(epd_tell_plan, TellPlan)                               \
  X(epd_take_answer, TakeAnswer)                           \
  X(epd_take_results, TakeResults)                         \
  X(epd_stage_counts, StageCounts)                         \
  X(epd_read_counts, ReadCounts)                           \
  X(epd_index_slots, IndexLandings)                        \
  X(epd_check_table, CheckTable)

// What a worker does for several ranks in one launch.
#define EPD_CUDA_EACH_KERNELS(X)                            \
  X(epd_gather_counts, OfEach<GatherCounts>)                \
  X(epd_copy_plans, OfEach<CopyPlan>)                       \
  X(epd_sum_plans, OfEach<SumPlan>)                         \
  X(epd_verify_plans, OfEach<VerifyPlan>)                   \
  X(epd_count_landings, OfEach<CountLandings>)              \
  X(epd_sum_landings, OfEach<SumLandings>)                  \
  X(epd_place_landings, OfEach<PlaceLandings>)              \
  X(epd_open_landings, OfEach<OpenLandings>)                \
  X(epd_index_landings, OfEach<IndexLandings>)              \
  X(epd_mark_landings, OfEach<MarkLandings>)                \
  X(epd_verify_marks, OfEach<VerifyMarks>)                  \
  X(epd_find_packed, OfEach<FindPacked>)                    \
  X(epd_check_tables, OfEach<CheckTable>)                   \
  X(epd_zero_each_16, OfEach<ZeroPadding<VectorMover<16>>>) \
  X(epd_zero_each_4, OfEach<ZeroPadding<VectorMover<4>>>)   \
  X(epd_zero_each_2, OfEach<ZeroPadding<VectorMover<2>>>)   \
  X(epd_zero_each_1, OfEach<ZeroPadding<VectorMover<1>>>)

// One set per mover.
#define EPD_CUDA_MOVE_KERNELS(X, suffix, ...)                          \
  X(epd_stage_rows_##suffix, StageRows<__VA_ARGS__>)                   \
  X(epd_read_rows_##suffix, ReadRows<__VA_ARGS__>)                     \
  X(epd_copy_rows_##suffix, CopyRows<__VA_ARGS__>)                     \
  X(epd_push_each_##suffix, OfEach<PushDirect<__VA_ARGS__>>)           \
  X(epd_push_landings_##suffix, OfEach<PushLandings<__VA_ARGS__>>)     \
  X(epd_expand_landings_##suffix, OfEach<ExpandLandings<__VA_ARGS__>>) \
  X(epd_pack_rows_##suffix, OfEach<PackRows<__VA_ARGS__>>)

#define EPD_CUDA_CLOSE_KERNELS(X)                  \
  X(epd_close_rows_16, CloseRows<VectorMover<16>>) \
  X(epd_close_rows_4, CloseRows<VectorMover<4>>)   \
  X(epd_close_rows_2, CloseRows<VectorMover<2>>)   \
  X(epd_close_rows_1, CloseRows<VectorMover<1>>)

// One of a client's stream and one of several ranks.
#define EPD_CUDA_GATHER_KERNEL(X, suffix, ...)      \
  X(epd_gather_##suffix, GatherReduce<__VA_ARGS__>) \
  X(epd_gather_each_##suffix, OfEach<GatherReduce<__VA_ARGS__>>)

#define EPD_CUDA_GATHER_KERNELS(X)                                \
  EPD_CUDA_GATHER_KERNEL(X, float32_16, DataType::kFloat32, 16)   \
  EPD_CUDA_GATHER_KERNEL(X, float32_4, DataType::kFloat32, 4)     \
  EPD_CUDA_GATHER_KERNEL(X, bfloat16_16, DataType::kBfloat16, 16) \
  EPD_CUDA_GATHER_KERNEL(X, bfloat16_4, DataType::kBfloat16, 4)   \
  EPD_CUDA_GATHER_KERNEL(X, bfloat16_2, DataType::kBfloat16, 2)   \
  EPD_CUDA_GATHER_KERNEL(X, float16_16, DataType::kFloat16, 16)   \
  EPD_CUDA_GATHER_KERNEL(X, float16_4, DataType::kFloat16, 4)     \
  EPD_CUDA_GATHER_KERNEL(X, float16_2, DataType::kFloat16, 2)

#define EPD_CUDA_KERNELS(X)                     \
  EPD_CUDA_PLAN_KERNELS(X)                      \
  EPD_CUDA_EACH_KERNELS(X)                      \
  EPD_CUDA_MOVE_KERNELS(X, 16, VectorMover<16>) \
  EPD_CUDA_MOVE_KERNELS(X, 4, VectorMover<4>)   \
  EPD_CUDA_MOVE_KERNELS(X, 2, VectorMover<2>)   \
  EPD_CUDA_MOVE_KERNELS(X, 1, VectorMover<1>)   \
  EPD_CUDA_MOVE_KERNELS(X, bulk, BulkMover)     \
  EPD_CUDA_CLOSE_KERNELS(X)                     \
  EPD_CUDA_GATHER_KERNELS(X)
