// The C ABI: structs of any known size in, statuses out. No exception leaves a function.
#include "client/c/epd_client.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "client/c/c_status.h"
#include "client/c/connect.h"
#include "client/c/digest.h"
#include "client/c/group_arguments.h"
#include "client/c/handles.h"
#include "client/c/operation.h"
#include "client/c/operation_calls.h"
#include "client/c/struct_size.h"
#include "kernels/routing_plan.h"

struct epd_pending {
  std::unique_ptr<epd::client::OperationRun> run;
};

// The C functions are global, and all that they use is the client's.
using namespace epd::client;  // NOLINT(google-build-using-namespace)

namespace {

static_assert(std::string_view(EPD_CLIENT_VERSION) == EPD_RELEASE,
              "epd_client.h and bazel/release.bzl say the same");

Status Null(const char* what) {
  return MakeStatus(Code::kInvalidArgument, "%s must not be NULL", what);
}

// Runs what `make` makes until it has ended.
template <typename Make>
int RunToEnd(epd_error* error, const Make& make) {
  return Guarded(error, [&]() -> Status {
    std::unique_ptr<OperationRun> run;
    if (Status s = make(&run); !s.ok()) return s;
    run->GoOn();
    return run->status();
  });
}

// From now on; negative, or further than the clock goes: for ever.
Clock::time_point After(int64_t wait_ns) {
  const Clock::time_point now = Clock::now();
  const std::chrono::nanoseconds wait(wait_ns);
  const bool ends = wait_ns >= 0 && wait < Clock::time_point::max() - now;
  return ends ? now + wait : Clock::time_point::max();
}

int Operate(epd_group* group, epd_operation operation, const void* args, epd_error* error) {
  return RunToEnd(error, [&](auto* run) { return MakeRun(group, operation, args, run); });
}

}  // namespace

extern "C" {

const char* epd_client_version(void) { return EPD_CLIENT_VERSION; }

int epd_connect(const epd_connect_args* given, epd_client** client, epd_error* error) {
  return Guarded(error, [&]() -> Status {
    if (client == nullptr) return Null("client");
    *client = nullptr;
    epd_connect_args args = {};
    if (given != nullptr) {
      if (Status s = ReadStruct(given, "args", &args); !s.ok()) return s;
    }
    ConnectOptions options;
    if (args.socket_path != nullptr) options.socket_path = args.socket_path;
    if (args.client_name != nullptr) options.client_name = args.client_name;
    if (args.daemon_path != nullptr) options.daemon_path = args.daemon_path;
    if (args.timeout_ms > 0) options.timeout = std::chrono::milliseconds(args.timeout_ms);
    options.autostart = args.no_autostart == 0;
    auto made = std::make_unique<epd_client>();
    if (Status s = ConnectToDaemon(options, &made->session); !s.ok()) return s;
    *client = made.release();
    return {};
  });
}

int epd_find_socket(const char* asked, char* path, size_t path_bytes, epd_error* error) {
  return Guarded(error, [&]() -> Status {
    if (path == nullptr) return Null("path");
    std::string found;
    if (Status s = FindSocket(asked == nullptr ? "" : asked, &found); !s.ok()) return s;
    if (found.size() < path_bytes) {
      std::memcpy(path, found.c_str(), found.size() + 1);
      return {};
    }
    return MakeStatus(Code::kResourceExhausted, "path_bytes: got %zu, expected more than %zu",
                      path_bytes, found.size());
  });
}

void epd_disconnect(epd_client* client) {
  if (client == nullptr) return;
  GuardedCall([client] {
    // A forked child only drops its handle: locks and threads of the session are the parent's.
    if (client->session->InForkedChild()) return;
    const std::unique_ptr<epd_client> own(client);
    client->session->Disconnect();
  });
}

int epd_check(epd_client* client, epd_error* error) {
  return Guarded(error,
                 [&] { return client == nullptr ? Null("client") : client->session->Check(); });
}

const char* epd_socket_path(const epd_client* client) {
  return GuardedOr<const char*>("", [client] { return client->session->path().c_str(); });
}

int epd_join(epd_client* client, const epd_join_args* given, epd_group** group, epd_error* error) {
  return Guarded(error, [&]() -> Status {
    if (client == nullptr) return Null("client");
    if (group == nullptr) return Null("group");
    *group = nullptr;
    Join join;
    epd_plans plans;
    if (Status s = ReadJoin(given, &join, &plans); !s.ok()) return s;
    const epd::PlanIds carried = {.group_id = plans.group_id, .epoch = plans.epoch};
    auto made = std::make_unique<epd_group>();
    made->session = client->session;
    if (Status s = client->session->JoinGroup(std::move(join), carried, &made->group); !s.ok())
      return s;
    *group = made.release();
    return {};
  });
}

int epd_leave(epd_group* group, epd_error* error) {
  return Guarded(error, [&]() -> Status {
    if (group == nullptr) return Null("group");
    if (group->session->InForkedChild()) return group->session->BeforeCall();
    const std::unique_ptr<epd_group> own(group);
    return group->session->LeaveGroup(*group->group);
  });
}

int epd_group_get_info(epd_group* group, epd_group_info* info) {
  return Guarded(nullptr, [&]() -> Status {
    if (group == nullptr) return Null("group");
    epd_group_info read;
    if (Status s = ReadStruct(info, "info", &read); !s.ok()) return s;
    const std::shared_ptr<const Formation> current = group->group->current();
    read.group_id = current->group_id;
    read.epoch = current->epoch;
    read.formation = current->formation;
    read.num_ranks = current->spec.num_ranks;
    read.num_experts = current->spec.num_experts;
    read.stopping = group->group->stopping();
    read.plans = {current->plan_ids.group_id, current->plan_ids.epoch};
    std::memcpy(info, &read, std::min(read.struct_size, sizeof read));
    return {};
  });
}

int epd_group_check(epd_group* group, epd_error* error) {
  return Guarded(error, [&]() -> Status {
    if (group == nullptr) return Null("group");
    Status cause;
    return group->group->HasEnded(&cause) ? cause : Status();
  });
}

uint64_t epd_begin_execution(epd_group* group, uint32_t rank, const uint8_t program[16]) {
  // A refused execution's calls say why.
  return GuardedOr<uint64_t>(kRefusedExecution, [&] {
    Program digest;
    std::copy(program, program + 16, digest.begin());
    (void)group->session->BeforeCallOf(*group->group);  // Likewise.
    return group->group->BeginExecution(rank, digest);
  });
}

size_t epd_handle_mem_size(uint32_t num_ranks, uint32_t num_experts, uint32_t max_tokens_per_rank,
                           uint32_t top_k) {
  return GuardedOr<size_t>(0, [&] {
    epd::RoutingSpec spec;
    spec.num_ranks = static_cast<int32_t>(num_ranks);
    spec.num_experts = static_cast<int32_t>(num_experts);
    spec.max_tokens = max_tokens_per_rank;
    spec.top_k = static_cast<int32_t>(top_k);
    return epd::CheckRoutingSpec(spec).ok() ? epd::RoutingPlanBytes(spec) : 0;
  });
}

int epd_prepare(epd_group* group, const epd_prepare_args* args, epd_error* error) {
  return Operate(group, EPD_OPERATION_PREPARE, args, error);
}

int epd_dispatch(epd_group* group, const epd_scatter_args* args, epd_error* error) {
  return Operate(group, EPD_OPERATION_DISPATCH, args, error);
}

int epd_combine_backward(epd_group* group, const epd_scatter_args* args, epd_error* error) {
  return Operate(group, EPD_OPERATION_COMBINE_BACKWARD, args, error);
}

int epd_combine(epd_group* group, const epd_gather_args* args, epd_error* error) {
  return Operate(group, EPD_OPERATION_COMBINE, args, error);
}

int epd_dispatch_backward(epd_group* group, const epd_gather_args* args, epd_error* error) {
  return Operate(group, EPD_OPERATION_DISPATCH_BACKWARD, args, error);
}

int epd_ragged_all_to_all(epd_group* group, const epd_ragged_args* args, epd_error* error) {
  return Operate(group, EPD_OPERATION_RAGGED_ALL_TO_ALL, args, error);
}

int epd_refuse(epd_group* group, const epd_refuse_args* args, epd_error* error) {
  return RunToEnd(error, [&](auto* run) { return MakeRefusal(group, args, run); });
}

int epd_try(epd_group* group, const epd_try_args* given, epd_pending** pending, epd_error* error) {
  if (pending != nullptr) *pending = nullptr;
  const int code = Guarded(error, [&]() -> Status {
    if (pending == nullptr) return Null("pending");
    epd_try_args args;
    if (Status s = ReadStruct(given, "args", &args); !s.ok()) return s;
    auto made = std::make_unique<epd_pending>();
    if (Status s = MakeRun(group, args.operation, args.args, &made->run); !s.ok()) return s;
    if (made->run->GoOn(After(args.wait_ns))) return made->run->status();
    *pending = made.release();
    return {};
  });
  return code == EPD_OK && *pending != nullptr ? EPD_PENDING : code;
}

int epd_finish(epd_pending* pending, epd_error* error) {
  return Guarded(error, [&]() -> Status {
    if (pending == nullptr) return Null("pending");
    const std::unique_ptr<epd_pending> made(pending);
    made->run->GoOn();
    return made->run->status();
  });
}

}  // extern "C"
