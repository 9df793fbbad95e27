// NCCL without GPUs, between processes: communicators whose members meet in a folder named by the unique
// id, and whose sends and receives move their bytes through files there, as operations of a fake driver's
// stream.
//
// As the real one without blocking does, it puts a group into the stream some time after ncclGroupEnd, in
// the background. A broken rule is told: sizes or an order that differ between the two sides, an id whose
// maker is gone or that has served, calls after an abort, an end in order while a member is dead.
//
// A communicator that was split off with a config that blocks puts its groups there at once.
#pragma once

#include <functional>
#include <string>

#include "daemon/backend/cuda/members/nccl_table.h"

namespace epd::cuda {

struct NcclMail {
  std::string folder;  // Exists; where members meet.
  // Puts an operation into a stream; it is asked again until it says that it is through.
  std::function<void(Stream stream, std::function<bool()> run)> put;
  std::function<void(const std::string& what)> violation;
};

// One for the process, before any call below.
void UseNcclMail(NcclMail mail);

// The functions of the table, and the maker of unique ids. Threads may call them at once.
NcclTable NcclMailTable();
NcclResult MakeNcclMailId(NcclUniqueId* id);

// Of a communicator; false: there is none.
bool NcclMailPlace(NcclComm comm, int* rank, int* num_ranks);

// Ranks of one that is whole that can be in a team which reaches its own memory: as NCCL's computeLsaSize (dev_runtime.cc) has
// it, the greatest divisor of all runs of ranks on one node. Processes with one parent, an epd, are on one node.
int NcclMailTeamRanks(NcclComm comm);

}  // namespace epd::cuda
