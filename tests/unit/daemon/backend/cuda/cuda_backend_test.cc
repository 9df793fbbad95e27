// Goal: rows that a device moves have the bits that the CPU backend gives; what a rank got wrong is named;
// memory comes and goes only while the device is idle; a device that fails or hangs is lost in time.
#include "daemon/backend/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <string>

#include "daemon/backend/cuda/moves/row_moves.h"
#include "proto/epd/v1/region_layout.h"
#include "tests/fakes/cuda/fake_driver.h"
#include "tests/fakes/cuda/host_run.h"
#include "tests/unit/kernels/exchange.h"

namespace epd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kArenaBytes = 8 << 20;
constexpr uint64_t kRegion = 4096;  // Not at the start, so that a forgotten offset shows.
constexpr uint64_t kRowBytes = 16 * 4;
constexpr int64_t kCapacity = 4096;

class CudaBackendTest : public ::testing::Test {
 protected:
  explicit CudaBackendTest(FakeMachine machine = {}) : driver_(machine) {
    for (int i = 0; i < NumKernels(); ++i) {
      const KernelShape shape = KernelAt(i);
      driver_.SetKernel(
          shape.name,
          [this, shape](void** arguments) {
            ++launched_[shape.name];
            ASSERT_TRUE(RunOnHost(shape, arguments[0], HostOrder::kShuffled));
          },
          shape.args_bytes);
    }
    const RoutingSpec spec = problem_.Spec();
    group_ = {.group_id = kTestIds.group_id,
              .epoch = kTestIds.epoch,
              .spec = {},
              .expert_owner = problem_.use_table ? problem_.owner : std::vector<int32_t>()};
    group_.spec.num_experts = static_cast<uint32_t>(spec.num_experts);
    group_.spec.max_tokens_per_rank = static_cast<uint32_t>(spec.max_tokens);
    job_ = {.kind = shm::Kind::kDispatch,
            .dtype = 1,
            .has_weights = true,
            .top_k = static_cast<uint32_t>(spec.top_k),
            .alignment = static_cast<uint32_t>(spec.alignment),
            .row_bytes = kRowBytes,
            .plan_id = kTestIds.plan_id,
            .parts = {}};
  }
  ~CudaBackendTest() override {
    EXPECT_THAT(driver_.violations(), IsEmpty());
    for (char* arena : mapped_) munmap(arena, kArenaBytes);
  }

  void Open(SharingChoice sharing = SharingChoice::kAuto, const char* bulk_setting = nullptr) {
    CudaDeviceOptions options;
    options.staging_bytes = uint64_t{128} << 20;
    options.sharing = sharing;
    options.bulk_setting = bulk_setting;
    options.limit = absl::Seconds(5);
    options.image = "an image";
    auto device = CudaDevice::Open(driver_.table(), options);
    ASSERT_TRUE(device.ok()) << device.status();
    backend_ = std::make_unique<CudaBackend>(*std::move(device), options.limit);
  }
  std::unique_ptr<ArenaSet> Make(uint64_t bytes = kArenaBytes) {
    auto set = backend_->CreateArenas(problem_.num_ranks, bytes, {}).value();
    for (int i = 0; i < 100 && absl::IsUnavailable(set->Ready()); ++i) {
      EXPECT_TRUE(Poll().ok());
    }
    return set;
  }
  // As clients do: through the descriptors.
  void MapAll() {
    for (int r = 0; r < problem_.num_ranks; ++r) {
      const ArenaShare share = arenas_->Share(r).value();
      EXPECT_EQ(share.bytes, kArenaBytes);
      EXPECT_EQ(share.sharing, ArenaSharing::kDeviceDescriptor);
      void* at =
          mmap(nullptr, share.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, share.read_write_fd, 0);
      ASSERT_NE(at, MAP_FAILED);
      mapped_.push_back(static_cast<char*>(at));
    }
  }
  absl::StatusOr<std::vector<MovedRows>> Poll() {
    driver_.RunStreams();
    return backend_->Poll(now_);
  }
  absl::Status Move() {
    backend_->StartMove(7, *arenas_, group_, job_, now_);
    for (int i = 0; i < 100; ++i) {
      const auto moved = Poll();
      if (!moved.ok()) return moved.status();
      if (moved->empty()) continue;
      EXPECT_EQ(moved->at(0).id, 7u);
      return moved->at(0).status;
    }
    return absl::InternalError("the move does not end");
  }

  // Puts plan, rows and weights of a rank into its region, in the form for devices.
  void Stage(int rank, const void* rows, uint64_t num_rows, const float* weights,
             uint64_t num_weights, uint64_t out_bytes) {
    char* region = mapped_[rank] + kRegion;
    const uint64_t plan_bytes = RoutingPlanBytes(problem_.Spec());
    EXPECT_OK(StagePlan(plans_.View(rank), region, plan_bytes));
    char* stage = region + shm::StageOffset(plan_bytes);
    if (num_rows > 0) std::memcpy(stage, rows, num_rows * kRowBytes);
    if (num_weights > 0) {
      std::memcpy(stage + shm::OutWeightsOffset(num_rows * kRowBytes), weights, num_weights * 4);
    }
    const uint64_t stage_bytes =
        shm::StageOffset(plan_bytes) + shm::OutBytes(num_rows * kRowBytes, num_weights);
    job_.parts.push_back({.arena = rank,
                          .num_tokens = static_cast<uint64_t>(problem_.NumTokens(rank)),
                          .recv_capacity = kCapacity,
                          .stage_offset = kRegion,
                          .stage_bytes = stage_bytes,
                          .out_offset = kRegion + shm::RoundUpToRegionAlignment(stage_bytes),
                          .out_bytes = out_bytes});
    std::memset(Out(rank), 0xee, out_bytes);  // What an earlier operation left.
  }
  char* Out(int rank) { return mapped_[rank] + job_.parts[rank].out_offset; }
  // Each rank's counts are its row.
  void StagePrepare() {
    job_.kind = shm::Kind::kPrepare;
    job_.parts.clear();
    rows_.clear();
    const size_t row = group_.spec.num_experts * sizeof(int32_t);
    for (int r = 0; r < problem_.num_ranks; ++r) {
      rows_.push_back(RandomBytes(random_, row));
      std::memcpy(mapped_[r] + kRegion, rows_[r].data(), row);
      job_.parts.push_back({.arena = r,
                            .stage_offset = kRegion,
                            .stage_bytes = row,
                            .out_offset = 2 * kRegion,
                            .out_bytes = row * problem_.num_ranks});
      std::memset(Out(r), 0xee, row * problem_.num_ranks);
    }
  }
  void StageDispatch() {
    for (int r = 0; r < problem_.num_ranks; ++r) {
      rows_.push_back(RandomBytes(random_, problem_.NumTokens(r) * kRowBytes));
      weights_.push_back(RandomFloats(random_, problem_.topk[r].size()));
      Stage(r, rows_[r].data(), problem_.NumTokens(r), weights_[r].data(), weights_[r].size(),
            shm::OutBytes(kCapacity * kRowBytes, kCapacity));
    }
  }
  // In arenas of its own.
  absl::Status MoveDispatch() {
    arenas_ = Make();
    MapAll();
    StageDispatch();
    return Move();
  }
  void ExpectDispatched() {
    const std::vector<::epd::Region> stages =
        StageScatters(problem_, plans_, rows_, weights_, kRowBytes);
    const std::vector<StageRef> refs = Refs(stages);
    for (int r = 0; r < problem_.num_ranks; ++r) {
      ::epd::Region rows(kCapacity * kRowBytes);
      std::vector<float> weights(kCapacity);
      PullScatterArgs args;
      args.plan = &plans_.View(r);
      args.sources = refs.data();
      args.row_bytes = kRowBytes;
      args.capacity = kCapacity;
      args.recv_rows = rows.data();
      args.recv_weights = weights.data();
      EXPECT_OK(PullScatter(args));
      EXPECT_EQ(std::memcmp(Out(r), rows.data(), rows.size()), 0) << "rank " << r;
      EXPECT_EQ(std::memcmp(Out(r) + shm::OutWeightsOffset(rows.size()), weights.data(),
                            kCapacity * sizeof(float)),
                0)
          << "rank " << r;
    }
  }

  Random random_{20260101};
  reference::Problem problem_ = RandomProblem(random_, Routing::kUniform);
  Plans plans_{problem_};
  std::map<std::string, int> launched_;  // By kernel.
  FakeDriver driver_;
  std::unique_ptr<CudaBackend> backend_;
  std::unique_ptr<ArenaSet> arenas_;
  std::vector<char*> mapped_;
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  MoveGroup group_;
  MoveJob job_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(CudaBackendTest, DispatchHasTheBitsOfTheCpuBackend) {
  Open();
  ASSERT_EQ(MoveDispatch(), absl::OkStatus());
  ExpectDispatched();
}

// Bulk copies run on the host by the same steps.
TEST_F(CudaBackendTest, RowsAsLongAsTheSettingSaysMoveByBulkCopiesWithTheSameBits) {
  Open(SharingChoice::kAuto, "64");
  ASSERT_EQ(MoveDispatch(), absl::OkStatus());
  ExpectDispatched();
  EXPECT_EQ(launched_["epd_push_each_bulk"], 1);
  EXPECT_EQ(launched_["epd_push_each_16"], 0);
}

TEST_F(CudaBackendTest, ShorterRowsMoveAsBefore) {
  Open(SharingChoice::kAuto, "65");
  ASSERT_EQ(MoveDispatch(), absl::OkStatus());
  EXPECT_EQ(launched_["epd_push_each_bulk"], 0);
  EXPECT_EQ(launched_["epd_push_each_16"], 1);
}

class CudaBackendOfSmallBlocksTest : public CudaBackendTest {
 protected:
  // Compute capability 12.0.
  CudaBackendOfSmallBlocksTest()
      : CudaBackendTest({.compute_major = 12, .max_shared_bytes = 99 << 10}) {}
};

// The driver refuses launches that ask for more.
TEST_F(CudaBackendOfSmallBlocksTest, GoesOnWithoutBulkCopiesWhateverTheSettingSays) {
  Open(SharingChoice::kAuto, "64");
  ASSERT_EQ(MoveDispatch(), absl::OkStatus());
  ExpectDispatched();
  EXPECT_EQ(launched_["epd_push_each_bulk"], 0);
  EXPECT_EQ(launched_["epd_push_each_16"], 1);
}

// One copy takes the tables to the device; kernels copy all plans in one launch, and write what they found themselves.
TEST_F(CudaBackendTest, AMoveCopiesItsTablesAndNothingBack) {
  Open();
  arenas_ = Make();
  MapAll();
  const auto copies = [this] {
    const int before = driver_.CountCalls("cuMemcpyAsync");
    EXPECT_EQ(Move(), absl::OkStatus());
    return driver_.CountCalls("cuMemcpyAsync") - before;
  };
  StageDispatch();
  EXPECT_EQ(copies(), 1);
  EXPECT_EQ(copies(), 1);
  StagePrepare();
  EXPECT_EQ(copies(), 1);
  EXPECT_EQ(launched_["epd_gather_counts"], 1);
}

TEST_F(CudaBackendTest, CombineHasTheBitsOfTheCpuBackend) {
  Open();
  arenas_ = Make();
  MapAll();
  job_.kind = shm::Kind::kCombine;
  job_.has_weights = false;
  std::vector<reference::Bytes> rows;
  for (int r = 0; r < problem_.num_ranks; ++r) {
    rows.push_back(RandomRows(random_, kCapacity * kRowBytes, DataType::kFloat32));
    Stage(r, rows[r].data(), kCapacity, nullptr, 0, problem_.NumTokens(r) * kRowBytes);
  }
  ASSERT_EQ(Move(), absl::OkStatus());
  const std::vector<std::vector<float>> weights(problem_.num_ranks, std::vector<float>(kCapacity));
  const std::vector<::epd::Region> stages =
      StageGathers(problem_, plans_, rows, weights, kRowBytes, false);
  const std::vector<StageRef> refs = Refs(stages);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    ::epd::Region out(problem_.NumTokens(r) * kRowBytes);
    PullGatherArgs args;
    args.plan = &plans_.View(r);
    args.sources = refs.data();
    args.row_bytes = kRowBytes;
    args.num_tokens = problem_.NumTokens(r);
    args.out = out.data();
    EXPECT_OK(PullGather(args));
    EXPECT_EQ(std::memcmp(Out(r), out.data(), out.size()), 0) << "rank " << r;
  }
}

TEST_F(CudaBackendTest, PrepareGivesEveryRankAllCountsAndTheWorkerReadsThemWithoutACopyOfItsOwn) {
  Open();
  arenas_ = Make();
  MapAll();
  StagePrepare();
  ASSERT_EQ(Move(), absl::OkStatus());
  const size_t row = rows_[0].size();
  std::vector<char> read(row);
  for (int r = 0; r < problem_.num_ranks; ++r) {
    for (int other = 0; other < problem_.num_ranks; ++other) {
      EXPECT_EQ(std::memcmp(Out(r) + other * row, rows_[other].data(), row), 0);
    }
    ASSERT_TRUE(arenas_->Read(r, kRegion, absl::MakeSpan(read)).ok());
    EXPECT_EQ(std::memcmp(read.data(), rows_[r].data(), row), 0);
  }
  EXPECT_FALSE(arenas_->Read(0, 3 * kRegion, absl::MakeSpan(read)).ok());
}

TEST_F(CudaBackendTest, ABadPlanIsAnErrorThatNamesItsRankAndTheNextMoveIsGood) {
  Open();
  arenas_ = Make();
  MapAll();
  StageDispatch();
  group_.epoch = 8;
  EXPECT_EQ(Move().code(), absl::StatusCode::kAborted);
  group_.epoch = kTestIds.epoch;
  char* plan = mapped_[1] + kRegion;
  plan[200] = static_cast<char>(plan[200] ^ 1);
  const absl::Status damaged = Move();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(damaged.message(), HasSubstr("rank 1"));
  plan[200] = static_cast<char>(plan[200] ^ 1);
  job_.plan_id = 43;
  EXPECT_EQ(Move().code(), absl::StatusCode::kInvalidArgument);
  job_.plan_id = kTestIds.plan_id;
  job_.parts[0].stage_bytes -= 64;
  const absl::Status small = Move();
  EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(small.message(), HasSubstr("rank 0 announced a stage of"));
  job_.parts[0].stage_bytes += 64;
  EXPECT_EQ(Move(), absl::OkStatus());
  ExpectDispatched();
}

TEST_F(CudaBackendTest, MemoryComesAndGoesOnlyOnceOpenMovesHaveEnded) {
  driver_.RunApart();
  Open();
  arenas_ = Make();
  MapAll();
  StageDispatch();
  ASSERT_EQ(Move(), absl::OkStatus());  // Its scratch memory is there now.
  backend_->StartMove(1, *arenas_, group_, job_, now_);
  std::unique_ptr<ArenaSet> other = backend_->CreateArenas(1, kArenaBytes, {}).value();
  backend_->StartMove(2, *arenas_, group_, job_, now_);
  ASSERT_TRUE(backend_->Poll(now_)->empty());
  EXPECT_TRUE(absl::IsUnavailable(other->Ready()));
  std::vector<MoveId> ended;
  for (int i = 0; i < 20; ++i) {
    const auto moved = Poll();
    ASSERT_TRUE(moved.ok()) << moved.status();
    for (const MovedRows& one : *moved) ended.push_back(one.id);
  }
  EXPECT_THAT(ended, ::testing::ElementsAre(1, 2));
  EXPECT_EQ(other->Ready(), absl::OkStatus());
  other.reset();  // Goes at the next occasion.
  const uint64_t with = backend_->device().staging().arena_bytes();
  EXPECT_TRUE(Poll().ok());
  EXPECT_EQ(backend_->device().staging().arena_bytes(), with - kArenaBytes);
  EXPECT_FALSE(backend_->busy());
}

TEST_F(CudaBackendTest, ArenasThatDoNotFitAreRefusedAndTheBackendServesOn) {
  Open();
  const auto large = Make(uint64_t{1} << 30);
  EXPECT_EQ(large->Ready().code(), absl::StatusCode::kResourceExhausted);
  driver_.Fail("cuMemCreate", kOutOfMemory, 0, 2);
  const auto refused = Make();
  EXPECT_EQ(refused->Ready().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused->Ready().message(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  arenas_ = Make();
  MapAll();
  StageDispatch();
  EXPECT_EQ(Move(), absl::OkStatus());
}

TEST_F(CudaBackendTest, ADeviceThatFailsIsLostWithTheDriversReason) {
  driver_.RunApart();
  Open();
  arenas_ = Make();
  MapAll();
  StageDispatch();
  backend_->StartMove(1, *arenas_, group_, job_, now_);
  driver_.Poison(kIllegalAddress);
  EXPECT_THAT(std::string(Poll().status().message()),
              AllOf(HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("lost")));
  EXPECT_FALSE(Poll().ok()) << "for good";
}

TEST_F(CudaBackendTest, AStreamThatNeverCompletesIsLostAtItsDeadline) {
  driver_.RunApart();
  Open();
  ASSERT_EQ(MoveDispatch(), absl::OkStatus());
  backend_->StartMove(1, *arenas_, group_, job_, now_);
  EXPECT_TRUE(backend_->Poll(now_ + absl::Seconds(4)).ok());
  const absl::Status late = backend_->Poll(now_ + absl::Seconds(6)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("operation 1"));
  driver_.RunStreams();
}

TEST_F(CudaBackendTest, WithoutVirtualMemoryArenasAreSharedByHandle) {
  Open(SharingChoice::kIpcHandle);
  arenas_ = Make();
  const ArenaShare share = arenas_->Share(0).value();
  EXPECT_EQ(share.sharing, ArenaSharing::kDeviceHandle);
  EXPECT_EQ(share.handle.size(), 64u);
  EXPECT_EQ(share.read_write_fd, -1);
  EXPECT_EQ(share.device_uuid.size(), 16u);
}

}  // namespace
}  // namespace epd::cuda
