// The one engine behind the five operations: announce, stage, publish, pull, pulled.
//
//   client                                      worker
//   ------                                      ------
//   announce: identity, fingerprint, sizes      waits for all ranks, compares, admits
//   Stage into the own arena's region
//   publish                                     waits for all ranks, decides; as executor moves the rows
//   Pull from the peers' arenas, or TakeOutput
//   pulled, not waited for                      frees the regions
//
// Failure is collective: an error of this rank's own input is announced like an operation, so that
// every rank gets the same cause. After any failure the outputs are zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "client/c/group.h"
#include "client/c/session.h"
#include "client/c/status.h"
#include "kernels/kernel_error.h"
#include "kernels/scatter_rows.h"
#include "proto/epd/v1/segment.h"

namespace epd::client {

// Where the admitted operation's bytes lie.
struct Admitted {
  uint64_t op_id = 0;
  uint64_t plan_id = 0;         // For a prepare: what its plan is named after, on all nodes.
  std::span<std::byte> region;  // Own.
  std::span<const StageRef>
      stages;  // [R] by rank, each from its region's start; {} for the own rank.
  bool worker_executor = false;
};

// One of the five operations, with its arguments. Used by one thread, once.
class Operation {
 public:
  virtual ~Operation() = default;

  // Checks the arguments against the group and fills in the request: kind, fingerprint, sizes. On
  // error everybody gets that error; the fingerprint is then not looked at.
  virtual Status Plan(const Formation& formation, shm::SlotRequest* request) = 0;

  // Writes this rank's stage, of the announced size.
  virtual Status Stage(const Admitted& admitted) = 0;

  // Client executor: reads what is meant for this rank out of all stages into the outputs.
  virtual Status Pull(const Admitted& admitted) = 0;

  // Worker executor: copies the output, of the announced size, into the caller's buffers.
  virtual Status TakeOutput(const Admitted& admitted, const std::byte* out) = 0;

  virtual void ZeroOutputs() = 0;

  // Of a prepare, after Plan: this rank's routes to each expert; of others nothing.
  virtual std::span<const int32_t> routes() const { return {}; }
  // Of a prepare, after Pull: the rows that only pad, in this rank's zones.
  virtual uint32_t padded_rows() const { return 0; }
};

class Call;

// One run of an operation, which may be stopped where it waits for others, and goes on in whatever thread. Used by one thread
// at a time; ended before it is destroyed. Errors are those of epd_client.h, with their place in the text.
class OperationRun {
 public:
  // Keeps session and group, so that leaving the group or disconnecting in another thread frees nothing under the call.
  OperationRun(std::shared_ptr<Session> session, std::shared_ptr<Group> group, uint32_t rank,
               CallKey key, std::unique_ptr<Operation> operation);
  ~OperationRun();

  // Goes on until the operation has ended. False: it has still to wait for others at `until`.
  bool GoOn(Clock::time_point until = Clock::time_point::max());
  // Once it has ended; after an error the outputs are zeros.
  const Status& status() const { return status_; }

 private:
  // Of a call that was not let in.
  void EndRefused();
  void EndCall();
  void Fail();

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Group> group_;
  const uint32_t rank_;
  CallKey key_;
  const std::unique_ptr<Operation> operation_;
  bool begun_ = false;
  bool is_let_in_ = false;  // The group is to be told that it has ended.
  std::shared_ptr<const Formation> formation_;
  std::unique_ptr<Call> call_;  // While it is under way.
  const char* phase_ = "begin";
  uint64_t epoch_ = 0;
  Status status_;
};

// A kernel's error as a status.
Status FromKernel(const KernelError& error);

}  // namespace epd::client
