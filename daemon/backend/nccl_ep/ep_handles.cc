#include "daemon/backend/nccl_ep/ep_handles.h"

#include <algorithm>
#include <iterator>

namespace epd::nccl_ep {

EpUse EpHandles::Use(const EpRoutes& routes) {
  std::list<Entry>& entries = entries_[{routes.alignment, routes.top_k}];
  auto found = std::find_if(entries.begin(), entries.end(), [&routes](const Entry& entry) {
    return entry.routes == routes && !routes.num_tokens.empty();
  });
  const bool tells = found == entries.end();
  if (tells && entries.size() < kOfEach) {
    const int handle = static_cast<int>(entries.size());
    found = entries.insert(entries.end(), Entry{.routes = {}, .handle = handle, .told = nullptr});
  } else if (tells) {
    found = std::prev(entries.end());
  }
  if (tells) {
    found->routes = routes;
    found->told = std::make_shared<EpTold>();
  }
  entries.splice(entries.begin(), entries, found);
  return {.handle = found->handle, .tells = tells, .told = found->told};
}

}  // namespace epd::nccl_ep
