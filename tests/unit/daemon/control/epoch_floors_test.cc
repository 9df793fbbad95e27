// Goal: an epoch of a name is never given out twice, whoever gave it out and however long ago.
#include "daemon/control/rendezvous/epoch_floors.h"

#include <gtest/gtest.h>

#include <string>

namespace epd {
namespace {

TEST(EpochFloorsTest, AClosedNameGoesOnAboveItsLastEpochAndOthersBeginAtTheFloor) {
  EpochFloors floors(Epoch{10});
  EXPECT_EQ(floors.Next("a", Epoch{}), Epoch{11});
  floors.Close("a", Epoch{17});
  EXPECT_EQ(floors.Next("a", Epoch{}), Epoch{18});
  EXPECT_EQ(floors.Next("a", Epoch{30}), Epoch{31});
  EXPECT_EQ(floors.Next("b", Epoch{}), Epoch{11});
  EXPECT_EQ(floors.highest(), Epoch{31});
}

TEST(EpochFloorsTest, WhatAPredecessorGaveOutCountsForEveryName) {
  EpochFloors floors(Epoch{});
  floors.Hear(Epoch{40}, Formation{7});
  floors.Hear(Epoch{39}, Formation{8});
  EXPECT_EQ(floors.Next("a", Epoch{}), Epoch{41});
  EXPECT_EQ(floors.formation(), Formation{8});
}

TEST(EpochFloorsTest, AForgottenNameStillGoesOnAboveItsLastEpoch) {
  EpochFloors floors(Epoch{});
  floors.Close("a", Epoch{500});
  EXPECT_EQ(floors.Next("b", Epoch{}), Epoch{1});
  for (size_t i = 0; i < EpochFloors::kMaxNames; ++i) floors.Close(std::to_string(i), Epoch{2});
  EXPECT_EQ(floors.Next("a", Epoch{}), Epoch{501});
  EXPECT_EQ(floors.Next("b", Epoch{}), Epoch{501}) << "a name that is not remembered may be any";
}

}  // namespace
}  // namespace epd
