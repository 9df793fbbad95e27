// The table in front of a stage's rows, between its bytes in memory and a proto of small numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/epd/v1/wire.pb.h"

namespace epd {

// Puts the first bytes of a stage's image into `out`: in numbers where every byte can be made of them again, which the table of
// a scatter or a gather is as it leaves its rank, else as they are.
void PutTable(const std::string& table, v1::WireRowsAhead& out);

// What it was, or what somebody else has made up: any bytes, as those of a stage. Nothing: it is more than `max_bytes`.
std::optional<std::string> TakeTable(const v1::WireRowsAhead& in, uint64_t max_bytes);

}  // namespace epd
