// What must hold in every world, whatever the order in which things happen.
#pragma once

#include <span>
#include <string>

#include "tests/unit/daemon/worker/world/world.h"

namespace epd::world {

struct Invariant {
  const char* name;
  // What `happening` breaks, "" for nothing. Effects are shown before they are carried out.
  std::string (*broken)(const World& world, const Happening& happening);
};

//   answers        a submission is answered once; a pulled never with an error
//   records        an outcome is recorded once, in a record that is open, before anybody is told, and as they are told
//   agreement      all ranks' calls of one operation end alike: all good, or all with one cause, also those that come after
//                  their formation has ended; over several workers unless the leader's stream was lost
//   reach          a formation cuts off one execution of a rank at most, and none of one that knows of the failure: no
//                  rank is more than one failed call away from the others when an epoch begins
//   truth          an operation is good only when every rank has published it, the rows of every rank are on every other
//                  worker and no rank had anything wrong; an error is somebody's
//   pairing        the calls of one operation are the same execution, or the same call of a site, on all ranks
//   exclusion      a region overlaps no region of another open operation, no eager buffers and nothing that a living
//                  client may touch; rows are written to open regions only; one operation at a time has a stream region,
//                  and what a rank reads there is that operation's
//   arenas         arenas live as long as a client, or a dead session's process, may touch them, and belong to tenants of
//                  the same sessions
//   eager buffers  every rank knows all eager buffers before the outcome is recorded, as their ranks said, and none
//                  comes back while a living peer may read it
//   isolation      the death of a session ends no call of a tenant that it does not belong to
//   deadlines      no submission is open for longer than its deadlines allow
//   order          the members of a communicator take part in the same operations in the same places, without gaps; a
//                  site's next announce is not answered before its pulled
//   mapping        a stream touches no staging of an earlier worker for an operation of this one
//   arming         a stream arms nothing that is open
//   pool           the books of the staging pool add up
//   progress       when nothing happens any more nobody waits
//   return         and every region, record, move and arena has come back
std::span<const Invariant> Invariants();

// For people; "" for what is not worth a line.
std::string Describe(const Happening& happening);

}  // namespace epd::world
