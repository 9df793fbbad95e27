#include "client/jax/meeting.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "client/jax/call_site.h"

namespace epd::jax {
namespace {

constexpr std::uint32_t kTopK = 1;

CallSite SiteOf(const Meeting& meeting) {
  CallSite site;
  site.executable = std::make_shared<Executable>();  // Of its own: a run is found by it.
  site.key = meeting.key;
  site.config.alias = meeting.alias;
  site.config.name = meeting.key;
  site.config.ranks = meeting.ranks;
  return site;
}

epd_key KeyOf(const Meeting& meeting) {
  epd_key key = {};
  key.struct_size = sizeof key;
  key.name = meeting.key.c_str();
  key.execution = EPD_EXECUTION_NEXT;
  return key;
}

Status Run(Groups& groups, const Meeting& meeting,
           const std::function<int(const ActiveCall&, epd_error*)>& exchange) {
  static std::atomic<std::int64_t> next_run_id{1};
  const CallSite site = SiteOf(meeting);
  const std::int64_t run_id = next_run_id.fetch_add(1, std::memory_order_relaxed);
  ActiveCall call;
  Status status = groups.Begin(site, run_id, static_cast<std::int32_t>(meeting.domain),
                               static_cast<std::int32_t>(meeting.position), &call);
  if (!status.ok()) return status;
  epd_error error = {};
  error.struct_size = sizeof error;
  const int code = exchange(call, &error);
  if (code != EPD_OK) status = FromError(code, error);
  call.End(site, run_id, status);
  return status;
}

}  // namespace

Status Meet(Groups& groups, const Meeting& meeting) {
  std::vector<std::int32_t> token_counts(std::max(1u, meeting.local_experts));
  std::vector<std::uint8_t> handle_mem(
      epd_handle_mem_size(meeting.ranks, meeting.experts, meeting.max_tokens, kTopK));
  std::int32_t total = 0;
  return Run(groups, meeting, [&](const ActiveCall& call, epd_error* error) {
    epd_prepare_args args = {};
    args.struct_size = sizeof args;
    args.rank = call.rank();
    args.key = KeyOf(meeting);
    args.topk_idx = &total;  // Of no token.
    args.idx_bytes = sizeof total;
    args.top_k = kTopK;
    args.token_counts = token_counts.data();
    args.total_recv = &total;
    args.handle_mem = handle_mem.data();
    args.handle_mem_bytes = handle_mem.size();
    return epd_prepare(call.group(), &args, error);
  });
}

Status Refuse(Groups& groups, const Meeting& meeting, const Status& reason) {
  return Run(groups, meeting, [&](const ActiveCall& call, epd_error* error) {
    epd_refuse_args args = {};
    args.struct_size = sizeof args;
    args.rank = call.rank();
    args.key = KeyOf(meeting);
    args.code = reason.code;
    args.text = reason.message.c_str();
    return epd_refuse(call.group(), &args, error);
  });
}

}  // namespace epd::jax
