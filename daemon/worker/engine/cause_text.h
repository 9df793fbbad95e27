// The one form of messages that reach clients and logs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/operation.h"
#include "daemon/worker/engine/tenant.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// "rank=2 host=a7 pid=4711 phase=absent; rank=3 ..." for the ranks of a tenant.
std::string NameRanks(const Tenant& tenant, const std::vector<Rank>& ranks,
                      const std::string& phase);

// UNAVAILABLE: the worker that serves `ranks` of a tenant is gone. It names the worker, its node and host, the ranks and
// `why`; the ranks' processes may well live.
absl::Status WorkerLost(const Tenant& tenant, const std::vector<Rank>& ranks,
                        absl::string_view why);

// UNAVAILABLE: what clients of this node hear when their worker stops with its epd.
absl::Status WorkerStops(absl::string_view why);

// FAILED_PRECONDITION: the group takes no new operations. Resumable if it drains in order.
absl::Status GroupDrains(const Tenant& tenant);

// `status` with its text as a client sees it: "[epd:CODE] group=g epoch=3 rank=0 phase=announce:
// text".
absl::Status ForClient(const absl::Status& status, const Tenant& tenant, uint32_t rank,
                       shm::Step step);
// The same where no tenant is known; `request` is copied out of client memory.
absl::Status ForStranger(const absl::Status& status, const shm::SlotRequest& request);

// Text that a client wrote, made clean (text.h).
std::string SafeText(std::string_view written);

// The static name of the operation that `request` announces, or "program=1f2e..." with the digest's first bytes.
std::string NameOf(const shm::SlotRequest& request);

// Of a program's digest, everywhere: people compare the texts.
inline constexpr size_t kDigestBytesShown = 6;
inline constexpr size_t kScopeBytes = 31;
// " scope=" and the end of what a client says of where its call stands in its program; "" for nothing.
std::string ScopeText(std::string_view written);

}  // namespace epd
