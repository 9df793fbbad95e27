// epd_join's arguments as the Join message.
#pragma once

#include "client/c/attach_messages.h"
#include "client/c/epd_client.h"
#include "client/c/status.h"

namespace epd::client {

// Checks what the daemon would not even be able to read; everything else is the daemon's to judge,
// for all ranks.
//   INVALID_ARGUMENT  NULL, struct_size not set, no rank, or a text that is too long or not
//   printable ASCII
Status ReadJoin(const epd_join_args* given, Join* join, epd_plans* plans);

}  // namespace epd::client
