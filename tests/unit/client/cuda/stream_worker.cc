#include "tests/unit/client/cuda/stream_worker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "daemon/core/unique_fd.h"
#include "daemon/worker/engine/exchange.h"
#include "daemon/worker/shell/outcome_records.h"
#include "daemon/worker/shell/session_slots.h"

namespace epd {
namespace {

OutcomeRecords MakeRecords() {
  constexpr uint32_t kSlots = limits::kMaxOpSlots;
  const int fd = memfd_create("records", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(shm::RecordsView::BytesFor(kSlots))), 0);
  void* const data =
      mmap(nullptr, sizeof(shm::RecordsHeader), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  shm::RecordsView::Create(data, kSlots);
  munmap(data, sizeof(shm::RecordsHeader));
  auto opened = OutcomeRecords::Open(UniqueFd(fd));
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

}  // namespace

struct StreamWorker::State {
  State(std::vector<int> s, Sizes z, Mover m)
      : slots(std::move(s)), sizes(z), mover(std::move(m)), records(MakeRecords()) {}

  void Perform();
  void Run(const AnswerSubmission& answer) {
    sessions.at(answer.submission.session).Answer(answer);
  }
  void Run(const LinkSubmission& link) { sessions.at(link.submission.session).Link(link); }
  void Run(const OpenRecord& open) { records.OpenOperation(open.operation); }
  void Run(const DecideRecord& decide) { records.Decide(decide.operation, decide.status); }
  void Run(const CloseRecord& close) { records.CloseOperation(close.operation); }
  void Run(const MoveRows& move) {
    exchange->RowsMoved(move.operation, mover(move.job), absl::UnixEpoch());
  }
  template <typename Other>
  void Run(const Other&) {}

  const std::vector<int> slots;
  const Sizes sizes;
  const Mover mover;
  OutcomeRecords records;
  std::mutex mutex;
  std::unique_ptr<Exchange> exchange;
  std::map<SessionId, SessionSlots> sessions;
  uint64_t next_operation = 1;
  std::atomic<bool> working = false;
  std::thread thread;
};

void StreamWorker::State::Perform() {
  for (Effects effects = exchange->TakeEffects(); !effects.empty();
       effects = exchange->TakeEffects()) {
    for (const Effect& effect : effects) {
      std::visit([this](const auto& one) { Run(one); }, effect);
    }
  }
}

StreamWorker::StreamWorker(std::vector<int> slots, Sizes sizes, Mover mover)
    : state_(std::make_unique<State>(std::move(slots), sizes, std::move(mover))) {}

StreamWorker::~StreamWorker() { Stop(); }

void StreamWorker::Start() {
  State& s = *state_;
  {
    std::lock_guard lock(s.mutex);
    s.sessions.clear();
    s.exchange = std::make_unique<Exchange>(ExchangeOptions{
        .device_staging_bytes = s.sizes.device_bytes, .first_operation_id = s.next_operation});
    s.next_operation += 1 << 20;
    for (uint32_t r = 0; r < s.slots.size(); ++r) {
      auto opened =
          SessionSlots::Open({.session = SessionId(r + 1), .record_index = r, .has_device = true},
                             UniqueFd(dup(s.slots[r])), UniqueFd(), s.records);
      EXPECT_TRUE(opened.ok()) << opened.status();
      s.sessions.emplace(SessionId(r + 1), *std::move(opened));
      s.exchange->AddSession(SessionId(r + 1));
    }
  }
  s.working = true;
  s.thread = std::thread([&s] {
    while (s.working) {
      {
        std::lock_guard lock(s.mutex);
        for (auto& [unused, session] : s.sessions) {
          session.TakeArmed(64,
                            [&s](const Submission& submission, const shm::SlotRequest& request) {
                              s.exchange->Take(submission, request, absl::UnixEpoch());
                            });
        }
        s.Perform();
      }
      usleep(10);
    }
  });
}

void StreamWorker::StartTenant(uint64_t formation) {
  State& s = *state_;
  std::lock_guard lock(s.mutex);
  TenantStart start{.group = GroupId(s.sizes.group_id),
                    .epoch = Epoch(formation),
                    .formation = Formation(formation),
                    .spec = {},
                    .members = {},
                    .bases = {},
                    .base_cause = absl::AbortedError("re-formed")};
  start.spec.name = "g";
  start.spec.num_ranks = static_cast<uint32_t>(s.slots.size());
  start.spec.num_experts = s.sizes.num_experts;
  start.spec.max_tokens_per_rank = s.sizes.max_tokens;
  start.spec.recv_capacity_per_rank = s.sizes.recv_capacity;
  start.spec.hidden = s.sizes.hidden;
  start.spec.top_k = s.sizes.top_k;
  start.spec.max_token_dtype = Dtype::kFloat32;
  start.spec.executor = s.sizes.ranks_move ? Executor::kClient : Executor::kWorker;
  start.spec.backend = "cuda";
  start.spec.drop_on_overflow = s.sizes.drop_on_overflow;
  for (uint32_t r = 0; r < s.slots.size(); ++r) {
    start.members.push_back(RankHolder{.rank = Rank(r),
                                       .node = {},
                                       .session = SessionId(r + 1),
                                       .arena_index = 0,
                                       .host = "h",
                                       .pid = 1,
                                       .client_name = {}});
  }
  EXPECT_TRUE(s.exchange->StartTenant(std::move(start), absl::UnixEpoch()).ok());
  s.Perform();
}

void StreamWorker::Stop() {
  state_->working = false;
  if (state_->thread.joinable()) state_->thread.join();
}

void StreamWorker::Replace() {
  Stop();
  for (auto& [unused, session] : state_->sessions) {
    session.AbortOpenSubmissions(absl::AbortedError("the worker died"));
  }
  Start();
}

}  // namespace epd
