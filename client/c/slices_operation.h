// ragged_all_to_all: slices of rows go to places that their senders name.
//
// To the worker it is a dispatch without weights, of no tokens: it pairs the calls, compares their rows and gives regions.
// What else must fit together, every rank finds out by itself, as each sees all of it: so all fail alike, with nothing moved.
#pragma once

#include <span>
#include <vector>

#include "client/c/operation.h"
#include "client/c/slice_table.h"

namespace epd::client {

class SlicesOperation : public Operation {
 public:
  // Borrows the arguments.
  explicit SlicesOperation(const epd_ragged_args& args) : args_(args) {}

  Status Plan(const Formation& formation, shm::SlotRequest* request) override;
  Status Stage(const Admitted& admitted) override;
  Status Pull(const Admitted& admitted) override;
  // Never reached: Plan refuses a group whose worker moves the rows.
  Status TakeOutput(const Admitted& admitted, const std::byte* out) override;
  void ZeroOutputs() override;

 private:
  void Land(const std::vector<RankSlices>& all, std::span<const StageRef> stages) const;
  void TellOffsets(const std::vector<RankSlices>& all) const;

  const epd_ragged_args& args_;
  RankSlices own_;
  std::vector<StagedRun> runs_;
};

}  // namespace epd::client
