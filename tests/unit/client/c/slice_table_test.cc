// Goal: what the ranks of a ragged all-to-all say is compared alike by all, rows for several ranks are staged once, and
// nothing that a peer writes into its stage is believed.
#include "client/c/slice_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace epd::client {
namespace {

using testing::HasSubstr;

// Two ranks, one slice each way; rank 0's operand has 8 rows, each output 8.
struct Given {
  std::vector<int32_t> input_offsets = {0, 2};
  std::vector<int32_t> send_sizes = {2, 3};
  std::vector<int32_t> output_offsets = {0, 0};
  std::vector<int32_t> recv_sizes = {2, 3};
  std::vector<char> rows = std::vector<char>(8);
  std::vector<char> result = std::vector<char>(8);

  epd_ragged_args Args(uint32_t rank) {
    epd_ragged_args args = {};
    args.struct_size = sizeof args;
    args.rank = rank;
    args.row_bytes = 1;
    args.operand = args.output = rows.data();
    args.result = result.data();
    args.operand_rows = args.output_rows = rows.size();
    args.index_bytes = 4;
    args.slices_per_rank = static_cast<uint32_t>(input_offsets.size() / 2);
    args.input_offsets = input_offsets.data();
    args.send_sizes = send_sizes.data();
    args.output_offsets = output_offsets.data();
    args.recv_sizes = recv_sizes.data();
    return args;
  }
  Status Read(uint32_t rank, RankSlices* own) {
    std::vector<StagedRun> runs;
    return ReadSlices(Args(rank), 2, own, &runs);
  }
};

// Both ranks' calls, the second as given.
Status Compare(Given second) {
  Given first;
  std::vector<RankSlices> all(2);
  EXPECT_TRUE(first.Read(0, &all[0]).ok());
  EXPECT_TRUE(second.Read(1, &all[1]).ok());
  return CheckSlices(all, /*may_overlap=*/false);
}

Given Fitting() {
  Given second;
  second.send_sizes = {3, 1};
  second.recv_sizes = {3, 1};
  second.output_offsets = {2, 3};
  return second;
}

TEST(SliceTableTest, WhatFitsIsFine) {
  EXPECT_TRUE(Compare(Fitting()).ok()) << Compare(Fitting()).message;
}

TEST(SliceTableTest, ASizeThatIsNotTheSendersIsNamedWithBothRanks) {
  Given second = Fitting();
  second.recv_sizes[0] = 4;
  const Status status = Compare(second);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("send_sizes[1] of rank 0 is 3"));
  EXPECT_THAT(status.message, HasSubstr("recv_sizes[0] of rank 1 is 4"));
}

TEST(SliceTableTest, ASliceMustLandInsideOfTheOutputAndOnNoOther) {
  Given second = Fitting();
  second.output_offsets[0] = 6;
  EXPECT_THAT(Compare(second).message, HasSubstr("output of rank 0 has 8 rows"));
  second = Fitting();
  second.output_offsets[0] = 1;
  EXPECT_THAT(
      Compare(second).message,
      HasSubstr("[0, 2) from rank 0 and [1, 4) from rank 1 overlap in the output of rank 0"));
}

TEST(SliceTableTest, OwnMistakesAreNamedByEntry) {
  RankSlices own;
  for (const auto& [array, text] : {std::pair{&Given::send_sizes, "send_sizes[1] is -1"},
                                    {&Given::recv_sizes, "recv_sizes[1] is -1"},
                                    {&Given::input_offsets, "input_offsets[1] is -1"},
                                    {&Given::output_offsets, "output_offsets[1] is -1"}}) {
    Given given;
    (given.*array)[1] = -1;
    const Status status = given.Read(0, &own);
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_THAT(status.message, HasSubstr(text));
  }
  Given given;
  given.input_offsets[1] = 6;
  EXPECT_THAT(given.Read(0, &own).message, HasSubstr("6 + 3, but operand has 8 rows"));
  given.send_sizes[1] = 0;  // Of an empty slice the offsets mean nothing.
  EXPECT_TRUE(given.Read(0, &own).ok());
}

TEST(SliceTableTest, RowsForSeveralRanksAreStagedOnceAndOwnOnesNot) {
  Given given;
  given.input_offsets = {0, 4, 2, 3};  // Two for each rank.
  given.send_sizes = {8, 2, 3, 4};
  given.output_offsets = given.recv_sizes = {0, 0, 0, 0};
  RankSlices own;
  std::vector<StagedRun> runs;
  ASSERT_TRUE(ReadSlices(given.Args(0), 2, &own, &runs).ok());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].first, 2);
  EXPECT_EQ(runs[0].end, 7);
  EXPECT_EQ(own.header.staged_rows, 5u);
  EXPECT_EQ(own.slices[2].staged_row, 0);
  EXPECT_EQ(own.slices[3].staged_row, 1);
}

TEST(SliceTableTest, APeersStageIsNotBelieved) {
  Given given = Fitting();
  RankSlices sent;
  ASSERT_TRUE(given.Read(1, &sent).ok());
  std::vector<char> stage(sent.stage_bytes());
  const auto write = [&] {
    std::memcpy(stage.data(), &sent.header, sizeof sent.header);
    std::memcpy(stage.data() + sizeof sent.header, sent.slices.data(),
                sent.slices.size() * sizeof sent.slices[0]);
  };
  const auto load = [&](size_t bytes) {
    write();
    RankSlices peer;
    return LoadSlices({stage.data(), bytes}, 1, 2, &peer).code;
  };
  EXPECT_EQ(load(stage.size()), Code::kOk);
  EXPECT_EQ(load(stage.size() - 1), Code::kDataLoss);
  EXPECT_EQ(load(8), Code::kDataLoss);
  sent.slices[0].staged_row = 1;
  EXPECT_EQ(load(stage.size()), Code::kDataLoss);
  sent.slices[0].staged_row = INT64_MAX;
  EXPECT_EQ(load(stage.size()), Code::kDataLoss);
  sent.slices[0].staged_row = 0;
  sent.slices[0].send_size = -1;
  EXPECT_EQ(load(stage.size()), Code::kDataLoss);
  sent.slices[0].send_size = 3;
  sent.header.row_bytes = UINT64_MAX;
  EXPECT_EQ(load(stage.size()), Code::kDataLoss);
  sent.header.row_bytes = 1;
  sent.header.slices_per_rank = UINT32_MAX;
  EXPECT_EQ(load(stage.size()), Code::kDataLoss);
}

}  // namespace
}  // namespace epd::client
