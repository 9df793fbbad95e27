// A stand-in for the C library inside one process: ranks meet in a table, the last one moves the
// rows. Its rows and plans follow API.md literally and slowly. Sessions can be cut, and what was
// called can be looked at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/c/epd_client.h"

namespace epd::fake {

// A call that reached the library.
struct Call {
  std::string operation;
  std::string group;
  std::uint32_t rank = 0;
  std::vector<std::uint8_t> program;
  std::uint64_t execution = 0;
  std::uint32_t ordinal = 0;
  std::uint32_t occurrence = 0;
};

// All calls since the last Reset, in order of arrival.
std::vector<Call> Calls();
// What the last epd_join said of its program: "<program>|<metadata>".
std::string last_join();
int num_sessions();  // Open ones.
int num_groups();    // Joined ones.

// Forgets calls and losses.
void Reset();

// The living sessions end: their calls fail with UNAVAILABLE, as epd_check does. New ones work.
void CutSessions();

// What epd_group_get_info says of the living sessions' groups: an epd_group_stopping.
void StopInOrder(int stopping);

// The joined groups have ended, as epd_group_check says; new ones live.
void EndGroups(int code);

// The next calls of epd_connect fail with `code`; the next epd_join, once.
void FailNextConnects(int code, int times);
void FailNextJoin(int code);

}  // namespace epd::fake
