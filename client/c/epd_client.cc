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
#include "client/c/prepare_operation.h"
#include "client/c/rows_operation.h"
#include "client/c/slices_operation.h"
#include "client/c/struct_size.h"

// The C functions are global, and all that they use is the client's.
using namespace epd::client;  // NOLINT(google-build-using-namespace)

namespace {

static_assert(std::string_view(EPD_CLIENT_VERSION) == EPD_RELEASE,
              "epd_client.h and bazel/release.bzl say the same");

// An operation that this rank cannot make, announced with its error alone.
class Refusal : public Operation {
 public:
  explicit Refusal(const epd_refuse_args& args) {
    if (args.code == EPD_OK) {
      error_ = MakeStatus(Code::kInvalidArgument, "epd_refuse: code must not be EPD_OK");
    } else {
      error_ = {CodeFromNumber(static_cast<uint32_t>(args.code)),
                args.text == nullptr ? "the rank gave no reason" : args.text};
    }
  }

  Status Plan(const Formation&, epd::shm::SlotRequest*) override { return error_; }
  // Never reached: what is announced with an error is not admitted.
  Status Stage(const Admitted&) override { return error_; }
  Status Pull(const Admitted&) override { return error_; }
  Status TakeOutput(const Admitted&, const std::byte*) override { return error_; }
  void ZeroOutputs() override {}

 private:
  Status error_;
};

Status Null(const char* what) {
  return MakeStatus(Code::kInvalidArgument, "%s must not be NULL", what);
}

constexpr size_t kScopeBytes = 31;  // As many as a record of a direct call has.

bool HasProgram(const epd_key& key) {
  return std::any_of(std::begin(key.program), std::end(key.program),
                     [](uint8_t byte) { return byte != 0; });
}

Status ReadKey(const epd_key& key, CallKey* out) {
  const bool has_text = key.name != nullptr && *key.name != '\0';
  if (has_text && !HasProgram(key)) {
    out->name = key.name;
    out->program = DigestOf(out->name);
  } else {
    const std::string_view text = has_text ? key.name : "";
    out->scope = text.substr(text.size() - std::min(text.size(), kScopeBytes));
    std::copy(std::begin(key.program), std::end(key.program), out->program.begin());
    out->ordinal = key.ordinal;
    out->occurrence = key.occurrence;
    if (key.execution == EPD_EXECUTION_NEXT) {
      return MakeStatus(
          Code::kInvalidArgument,
          "a key without a name needs the number that epd_begin_execution gave for its execution");
    }
  }
  if (key.execution != EPD_EXECUTION_NEXT) out->execution = key.execution;
  return {};
}

// What the operations have in common: arguments in, operation run.
template <typename Args, typename Make>
int Operate(epd_group* group, const Args* given, epd_error* error, Make make) {
  return Guarded(error, [&]() -> Status {
    if (group == nullptr) return Null("group");
    Args args;
    if (Status s = ReadStruct(given, "args", &args); !s.ok()) return s;
    CallKey key;
    auto operation = make(args);
    if (Status s = ReadKey(args.key, &key); !s.ok()) {
      operation.ZeroOutputs();
      return s;
    }
    // Copies, so that leaving the group or disconnecting in another thread frees nothing under this
    // call.
    const std::shared_ptr<Session> session = group->session;
    const std::shared_ptr<Group> held = group->group;
    return RunOperation(*session, *held, args.rank, std::move(key), operation);
  });
}

int Scatter(epd_group* group, const epd_scatter_args* args, epd_error* error, epd::shm::Kind kind) {
  return Operate(group, args, error,
                 [&](const epd_scatter_args& a) { return ScatterOperation(kind, a); });
}

int Gather(epd_group* group, const epd_gather_args* args, epd_error* error, epd::shm::Kind kind) {
  return Operate(group, args, error,
                 [&](const epd_gather_args& a) { return GatherOperation(kind, a); });
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

void epd_disconnect(epd_client* client) {
  if (client == nullptr) return;
  // A forked child only drops its handle: locks and threads of the session are the parent's.
  if (client->session->InForkedChild()) return;
  client->session->Disconnect();
  delete client;
}

int epd_check(epd_client* client, epd_error* error) {
  return Guarded(error,
                 [&] { return client == nullptr ? Null("client") : client->session->Check(); });
}

const char* epd_socket_path(const epd_client* client) { return client->session->path().c_str(); }

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
  if (group == nullptr) return Report(Null("group"), error);
  if (group->session->InForkedChild())
    return Guarded(error, [&] { return group->session->BeforeCall(); });
  const int code = Guarded(error, [&] { return group->session->LeaveGroup(*group->group); });
  delete group;
  return code;
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
  Program digest;
  std::copy(program, program + 16, digest.begin());
  (void)group->session->BeforeCallOf(*group->group);  // The execution's calls say it.
  return group->group->BeginExecution(rank, digest);
}

size_t epd_handle_mem_size(uint32_t num_ranks, uint32_t num_experts, uint32_t max_tokens_per_rank,
                           uint32_t top_k) {
  epd::RoutingSpec spec;
  spec.num_ranks = static_cast<int32_t>(num_ranks);
  spec.num_experts = static_cast<int32_t>(num_experts);
  spec.max_tokens = max_tokens_per_rank;
  spec.top_k = static_cast<int32_t>(top_k);
  return epd::CheckRoutingSpec(spec).ok() ? epd::RoutingPlanBytes(spec) : 0;
}

int epd_prepare(epd_group* group, const epd_prepare_args* args, epd_error* error) {
  return Operate(group, args, error, [](const epd_prepare_args& a) { return PrepareOperation(a); });
}

int epd_dispatch(epd_group* group, const epd_scatter_args* args, epd_error* error) {
  return Scatter(group, args, error, epd::shm::Kind::kDispatch);
}

int epd_combine_backward(epd_group* group, const epd_scatter_args* args, epd_error* error) {
  return Scatter(group, args, error, epd::shm::Kind::kCombineBackward);
}

int epd_combine(epd_group* group, const epd_gather_args* args, epd_error* error) {
  return Gather(group, args, error, epd::shm::Kind::kCombine);
}

int epd_dispatch_backward(epd_group* group, const epd_gather_args* args, epd_error* error) {
  return Gather(group, args, error, epd::shm::Kind::kDispatchBackward);
}

int epd_ragged_all_to_all(epd_group* group, const epd_ragged_args* args, epd_error* error) {
  return Operate(group, args, error, [](const epd_ragged_args& a) { return SlicesOperation(a); });
}

int epd_refuse(epd_group* group, const epd_refuse_args* args, epd_error* error) {
  return Operate(group, args, error, [](const epd_refuse_args& a) { return Refusal(a); });
}

}  // extern "C"
