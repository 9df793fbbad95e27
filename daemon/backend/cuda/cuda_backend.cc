#include "daemon/backend/cuda/cuda_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd::cuda {

CudaBackend::~CudaBackend() {
  // Communicators have no more time to end in order, and are aborted.
  for (const auto& communicator : communicators_) queue_.emplace_back(communicator->TakeMemory());
  communicators_.clear();
  // Sets that are left go before this; what they had is given back if the device is idle.
  if (lost_.ok()) Pump(now_);
}

absl::StatusOr<std::unique_ptr<ArenaSet>> CudaBackend::CreateArenas(
    int num_arenas, uint64_t arena_bytes, const std::vector<int>& /*landing_of_arena*/) {
  const int stream = next_stream_++ % kNumMoveStreams;
  auto arenas = std::make_unique<CudaArenas>(
      *device_, num_arenas, arena_bytes, stream,
      [this](CudaArenas* set, CudaArenas::Left left) { Abandon(set, std::move(left)); });
  queue_.emplace_back(MakeArenas{arenas.get()});
  return arenas;
}

void CudaBackend::StartMove(MoveId id, ArenaSet& arenas, const MoveGroup& group, const MoveJob& job,
                            absl::Time now) {
  if (group.communicator != 0) {
    return StartWithPeers(id, static_cast<CudaArenas&>(arenas), group, job);
  }
  auto move = std::make_unique<Move>();
  move->id = id;
  move->arenas = static_cast<CudaArenas*>(&arenas);
  move->group = group;
  move->job = job;
  absl::StatusOr<RowMoves> rows = RowMoves::Create(move->group, move->job);
  if (!rows.ok()) return moved_.push_back({id, rows.status()});
  move->rows.emplace(*std::move(rows));
  queue_.emplace_back(std::move(move));
  Pump(now);
}

// Moves of the set have ended, or the worker ends; what was asked for and not begun is forgotten.
void CudaBackend::Abandon(CudaArenas* arenas, CudaArenas::Left left) {
  std::erase_if(queue_, [arenas](const Request& request) {
    if (const auto* make = std::get_if<MakeArenas>(&request)) return make->arenas == arenas;
    const auto* move = std::get_if<std::unique_ptr<Move>>(&request);
    return move != nullptr && (*move)->arenas == arenas;
  });
  for (const auto& communicator : communicators_) {
    for (const PeerMemory& mapped : communicator->Forget(arenas)) left.peers.push_back(mapped);
  }
  std::erase_if(moves_, [arenas](const auto& entry) { return entry.second->arenas == arenas; });
  if (!lost_.ok() || left.empty()) return;
  queue_.emplace_back(std::move(left));
}

void CudaBackend::Lose(const absl::Status& why) {
  if (lost_.ok()) lost_ = why;
}

void CudaBackend::Pump(absl::Time now) {
  while (!queue_.empty() && lost_.ok()) {
    Request& first = queue_.front();
    bool done = false;
    if (auto* make = std::get_if<MakeArenas>(&first)) {
      done = Do(*make);
    } else if (auto* left = std::get_if<GiveBack>(&first)) {
      done = Do(*left);
    } else {
      done = Do(std::get<std::unique_ptr<Move>>(first), now);
    }
    if (!done) break;
    queue_.pop_front();
    waits_since_ = absl::InfiniteFuture();
  }
  if (queue_.empty() || !lost_.ok()) return;
  waits_since_ = device_->streams().held() ? now : std::min(waits_since_, now);
  if (now >= waits_since_ + limit_) {
    Lose(absl::DeadlineExceededError(absl::StrCat(
        "device ", device_->name(), " has not become idle within ", absl::FormatDuration(limit_))));
  }
}

bool CudaBackend::Do(MakeArenas& request) {
  const absl::Status made = request.arenas->Make();
  if (absl::IsInternal(made)) Lose(made);
  return !absl::IsFailedPrecondition(made);
}

bool CudaBackend::Do(GiveBack& request) {
  if (absl::Status idle = device_->streams().CheckIdle(); !idle.ok()) {
    if (absl::IsInternal(idle)) Lose(idle);
    return false;
  }
  for (const auto& [pages, bytes] : request.pages) {
    device_->driver().host_unregister(pages);
    munmap(pages, bytes);
  }
  request.pages.clear();
  for (const PeerMemory& mapped : request.peers) UnmapPeerMemory(device_->driver(), mapped);
  request.peers.clear();
  while (!request.memory.empty()) {
    const absl::Status given = device_->staging().GiveBack(request.memory.back());
    if (absl::IsInternal(given)) Lose(given);
    if (!given.ok() && !absl::IsNotFound(given)) return false;
    request.memory.pop_back();
  }
  return true;
}

bool CudaBackend::Do(std::unique_ptr<Move>& request, absl::Time now) {
  Move& move = *request;
  const absl::StatusOr<int> block = move.arenas->TakeBlock(move.rows->room());
  if (absl::IsFailedPrecondition(block.status())) return false;
  if (absl::IsInternal(block.status())) Lose(block.status());
  if (!block.ok()) {
    moved_.push_back({move.id, block.status()});
    return true;
  }
  move.block = *block;
  const StreamSteps steps = move.rows->Steps(move.arenas->Places(*block), device_->shape()).before;
  const absl::Status started = device_->work().Start(
      move.id, move.arenas->stream(),
      [&](Stream stream) { return steps.Put(device_->driver(), device_->kernels(), stream); }, now);
  if (absl::IsResourceExhausted(started)) {
    move.arenas->ReturnBlock(*block);
    return false;
  }
  if (!started.ok()) {
    Lose(started);
    return false;
  }
  moves_[move.id] = std::move(request);
  return true;
}

absl::StatusOr<std::vector<MovedRows>> CudaBackend::Poll(absl::Time now) {
  now_ = now;
  if (lost_.ok()) {
    const absl::StatusOr<std::vector<WorkId>> complete = device_->work().Poll(now);
    if (complete.ok()) {
      for (const WorkId id : *complete) Finish(id);
      Pump(now);
      PollCommunicators(now);
    } else {
      Lose(complete.status());
    }
  }
  if (!lost_.ok()) return lost_;
  return std::exchange(moved_, {});
}

void CudaBackend::Finish(WorkId id) {
  const auto found = moves_.find(id);
  if (found == moves_.end()) {  // Of a communicator, or its arenas went first.
    for (const auto& communicator : communicators_) {
      if (communicator->Complete(id)) return;
    }
    return;
  }
  const std::unique_ptr<Move> move = std::move(found->second);
  moves_.erase(found);
  const uint8_t* host = move->arenas->Places(move->block).host;
  moved_.push_back({id, move->rows->Outcome(host)});
  if (move->job.kind == shm::Kind::kPrepare) {
    move->arenas->KeepCounts(move->job, host, move->group.spec.num_experts);
  }
  move->arenas->ReturnBlock(move->block);
}

bool CudaBackend::busy() const {
  if (!queue_.empty() || !moves_.empty() || !moved_.empty() || !prepared_.empty()) return true;
  if (!for_neighbours_.empty() || !notes_.empty()) return true;
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [](const auto& communicator) { return communicator->busy(); });
}

}  // namespace epd::cuda
