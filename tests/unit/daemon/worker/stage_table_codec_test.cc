// Goal: the table in front of a stage's rows is the same, byte for byte, behind its way between two nodes; a damaged one is not
// mended, and nobody can make one that is larger than an eager buffer.
#include "daemon/worker/peer_streams/stage_table_codec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gather_stage.h"
#include "kernels/scatter_stage.h"

namespace epd {
namespace {

constexpr uint64_t kMaxBytes = 256 << 10;

template <typename T>
void Append(const T& value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string Scatter(bool weighs) {
  const std::vector<StageRoute> routes = {{0, 7, 0.25F}, {1, 8, 0.5F}, {0, 2, 0.125F}};
  const ScatterStageShape shape{
      .num_tokens = 2, .num_routes = 3, .num_ranks = 4, .row_bytes = 4096};
  ScatterStageHeader header = {};
  header.magic = kScatterStageMagic;
  header.version = kScatterStageVersion;
  header.rank = 3;
  header.plan_id = 4711;
  header.num_ranks = 4;
  header.num_rows = 2;
  header.num_routes = 3;
  header.has_weights = weighs ? 1 : 0;
  header.row_bytes = shape.row_bytes;
  header.routes_offset = ScatterRoutesOffset(shape.num_ranks);
  header.rows_offset = ScatterRowsOffset(shape);
  header.total_bytes = ScatterStageBytes(shape);
  std::string table;
  Append(header, table);
  for (const uint32_t begin : {0u, 2u, 3u, 3u, 3u}) Append(begin, table);
  for (StageRoute route : routes) {
    if (!weighs) route.weight = 0;
    Append(route, table);
  }
  return table;
}

std::string Gather(bool weighs) {
  const GatherStageShape shape{.num_rows = 20, .row_bytes = 4096, .has_weights = weighs};
  GatherStageHeader header = {};
  header.magic = kGatherStageMagic;
  header.version = kGatherStageVersion;
  header.rank = 2;
  header.plan_id = 4711;
  header.num_rows = 20;
  header.has_weights = weighs ? 1 : 0;
  header.row_bytes = shape.row_bytes;
  header.weights_offset = weighs ? sizeof header : 0;
  header.rows_offset = GatherRowsOffset(shape);
  header.total_bytes = GatherStageBytes(shape);
  std::string table;
  Append(header, table);
  return table;
}

// As it is sent.
v1::WireRowsAhead Put(const std::string& table) {
  v1::WireRowsAhead out;
  PutTable(table, out);
  v1::WireRowsAhead heard;
  EXPECT_TRUE(heard.ParseFromString(out.SerializeAsString()));
  return heard;
}

TEST(StageTableCodecTest, SoundTablesGoAsNumbersAndAreTheSameAgain) {
  for (const std::string& table : {Scatter(true), Scatter(false), Gather(true), Gather(false)}) {
    const v1::WireRowsAhead sent = Put(table);
    EXPECT_TRUE(sent.has_table());
    EXPECT_LT(sent.ByteSizeLong(), table.size() / 2);
    EXPECT_EQ(TakeTable(sent, kMaxBytes), table);
  }
}

TEST(StageTableCodecTest, WhateverElseStandsThereIsTheSameAgainToo) {
  std::vector<std::string> tables = {"", "x", std::string(1000, '\0'), std::string(1000, '\xff')};
  for (const std::string& table : {Scatter(true), Gather(true)}) {
    for (size_t at = 0; at < table.size(); ++at) {
      for (const char value : {'\0', '\x01', '\x7f', '\xff'}) {
        tables.push_back(table);
        tables.back()[at] = value;
      }
    }
    tables.push_back(table + "x");
    tables.push_back(table.substr(0, table.size() - 1));
  }
  for (const std::string& table : tables) EXPECT_EQ(TakeTable(Put(table), kMaxBytes), table);
}

TEST(StageTableCodecTest, TablesThatSomebodyMakesUpHaveAnEnd) {
  v1::WireRowsAhead in;
  in.mutable_table()->set_num_rows(UINT32_MAX);
  in.mutable_table()->set_row_bytes(UINT64_MAX);
  for (int i = 0; i < 1000; ++i) {
    in.mutable_table()->add_routes_to(UINT32_MAX);
    in.mutable_table()->add_route_rows(UINT32_MAX);
    in.mutable_table()->add_route_slots(INT32_MIN);
  }
  const auto table = TakeTable(in, kMaxBytes);
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->size(), ScatterRoutesOffset(1000) + 1000 * sizeof(StageRoute));
  EXPECT_FALSE(TakeTable(in, table->size() - 1).has_value());
  in.mutable_table()->set_gathers(true);
  EXPECT_EQ(TakeTable(in, kMaxBytes)->size(), sizeof(GatherStageHeader));
}

}  // namespace
}  // namespace epd
