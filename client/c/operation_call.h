// One call of an operation in a formation, in steps: whoever makes it may stop where it waits for others, and go on later,
// in another thread.
//
//   kBegin -> kMeet ------------------------> kRead -> kEnded     rows in eager buffers, from rank to rank
//          \       \                         /
//           -------> kAnnounced -> kPublished                     by the worker; rows in eager buffers are published with the announce
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/c/direct_call.h"
#include "client/c/group.h"
#include "client/c/held_slot.h"
#include "client/c/operation.h"
#include "client/c/session.h"
#include "client/c/status.h"
#include "proto/epd/v1/segment.h"

namespace epd::client {

// Between BeginCall and EndCall. Used by one thread at a time. Borrows everything but the formation.
class Call {
 public:
  struct Of {
    Session& session;
    Group& group;
    Operation& operation;
    uint32_t rank;
    const CallKey& key;
    Status refused = {};  // Why this rank cannot make the call: it only tells the others.
  };
  Call(Of of, std::shared_ptr<const Formation> formation)
      : session_(of.session),
        group_(of.group),
        shared_formation_(std::move(formation)),
        formation_(*shared_formation_),
        operation_(of.operation),
        key_(of.key),
        slot_(*formation_.slots[of.rank]),
        refused_(std::move(of.refused)) {
    request_.rank = of.rank;
  }
  // Under way only where memory has run out: whoever may still read this rank's rows then finds that they do not stand, or
  // reads them as they are, since nobody writes there.
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Goes on until the call has ended. False: it has still to wait for others at `until`.
  bool GoOn(Clock::time_point until);
  // Once it has ended.
  const Status& status() const { return status_; }
  // In place of GoOn, of a formation that has ended with `cause`: what the worker knows of this execution, which may
  // have failed with another cause before; `cause` if it knows nothing.
  Status AskWhyEnded(const Status& cause);
  const char* phase() const { return phase_; }

 private:
  // Where it goes on; kMeet, kAnnounced and kPublished wait.
  enum class State { kBegin, kMeet, kAnnounced, kPublished, kRead, kEnded };

  void Go(Status status);
  Status Begin();
  bool Meet(Clock::time_point until);
  Status TakeAnswer();
  Status TakePublished();
  // Stages the rows and says so, if that was not done before.
  void GoOnAdmitted();

  // Whether a CPU's call can be made there at all.
  Status CheckDevice() const;
  void Announce();
  // What the worker's answer to an announce means for what ranks have published for themselves.
  Status Answered();
  // Without the worker. True: it is published, and peers are to be awaited.
  bool TryDirect();
  bool TryPublish();
  void TakeDirect();
  DirectPrograms::Call ProgramCall() const;
  void SetKey();
  // Stages into eager buffers if there are as many as the rows need. False: they are not staged.
  bool TryStage(Status* status);
  void Publish();
  Status ReadDirect();
  Status ReadAndFree();
  Status Read();
  // Into the caller's buffers.
  Status TakeRows();
  // Arms the slot with the request. `limit`: of the worker.
  void Submit(shm::Step step, std::chrono::nanoseconds limit);
  bool AwaitAnswer(Clock::time_point until);
  Status StatusOf(uint32_t answer);
  void TakeAdmission(const shm::SlotReply& reply);
  void TakeEagerBuffers();
  void TakeNames(const shm::SlotReply& reply) {
    admitted_.op_id = reply.op_id;
    admitted_.plan_id = reply.plan_id != 0 ? reply.plan_id : reply.op_id;
  }
  void AddStage(uint32_t rank, std::optional<uint64_t> offset, uint64_t bytes);
  void AddEagerStage(uint32_t rank, uint64_t eager_buffer);
  // Whether the rows were taken from where they were staged.
  void NoteStaged(bool taken) const;
  void SetError(const Status& error);

  Session& session_;
  Group& group_;
  const std::shared_ptr<const Formation> shared_formation_;
  const Formation& formation_;
  Operation& operation_;
  const CallKey& key_;
  HeldSlot slot_;
  State state_ = State::kBegin;
  Clock::time_point deadline_;  // Of what is awaited.
  Status status_;
  Status answer_;  // The worker's last.
  const Status refused_;
  Status own_;  // Of this rank's arguments and rows.
  shm::SlotRequest request_ = {};
  Admitted admitted_;
  Status admission_;                  // Whether the worker's region can be used.
  bool staged_ = false;               // Into eager buffers,
  uint32_t num_staged_ = 0;           // so many.
  bool published_ = false;            // With the announce.
  std::optional<DirectCall> direct_;  // It is published.
  bool met_ = false;                  // By all ranks.
  std::vector<StageRef> stages_;
  uint64_t out_offset_ = 0;
  const char* phase_ = "announce";
};

}  // namespace epd::client
