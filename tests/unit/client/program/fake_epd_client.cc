#include "tests/unit/client/program/fake_epd_client.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "proto/epd/v1/row_dtype.h"

struct epd_client {
  bool cut = false;
  int stopping = EPD_GROUP_STAYS;  // Of all its groups, until the next join.
};

struct epd_group {
  epd_client* client = nullptr;
  std::string name;
  epd_group_spec spec{};
  epd_plans plans{};
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> begun;
  int generation = 0;
};

namespace {

using epd::fake::Call;

constexpr std::int32_t kPlanMagic = 0x46414b45;

struct PlanHead {
  std::int32_t magic, rank, tokens, top_k;
};
struct Route {
  std::int32_t dst, slot;
};

// What one rank brought.
struct Arrival {
  std::uint32_t rank = 0;
  const epd_prepare_args* prepare = nullptr;
  const epd_scatter_args* scatter = nullptr;
  const epd_gather_args* gather = nullptr;
  const epd_refuse_args* refuse = nullptr;
};

struct Operation {
  std::map<std::uint32_t, Arrival> arrivals;
  bool done = false;
  int code = 0;
  std::string text;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Call> calls;
  std::map<std::string, std::shared_ptr<Operation>> operations;
  int sessions = 0, groups = 0;
  int connect_code = 0, connect_failures = 0, join_code = 0;
  int generation = 0, ended_code = 0;  // Groups of earlier generations have ended.
  std::string last_join;
  std::vector<epd_client*> clients;
};

World& world() {
  static World* const instance = new World;
  return *instance;
}

int Fail(epd_error* error, int code, const std::string& text) {
  if (error != nullptr) {
    error->code = code;
    std::snprintf(error->message, sizeof error->message, "%s", text.c_str());
  }
  return code;
}

std::int64_t Index(const epd_prepare_args& args, std::uint64_t i) {
  return args.idx_bytes == 8 ? static_cast<const std::int64_t*>(args.topk_idx)[i]
                             : static_cast<const std::int32_t*>(args.topk_idx)[i];
}

Route* RoutesOf(void* plan) {
  return reinterpret_cast<Route*>(static_cast<char*>(plan) + sizeof(PlanHead));
}
const Route* RoutesOf(const void* plan) { return RoutesOf(const_cast<void*>(plan)); }

void FinishPrepare(const epd_group& group, Operation& operation) {
  const std::int64_t ranks = group.spec.num_ranks, experts = group.spec.num_experts;
  const std::int64_t local = experts / ranks;
  std::vector<std::vector<std::vector<std::pair<std::uint32_t, std::uint64_t>>>> zones(
      ranks, std::vector<std::vector<std::pair<std::uint32_t, std::uint64_t>>>(local));
  for (auto& [rank, arrival] : operation.arrivals) {
    const epd_prepare_args& args = *arrival.prepare;
    for (std::uint64_t i = 0; i < args.num_tokens * args.top_k; ++i) {
      const std::int64_t expert = Index(args, i);
      if (expert >= experts) {
        operation.code = 3;
        operation.text = "[epd:INVALID_ARGUMENT] rank=" + std::to_string(rank) + ": expert index " +
                         std::to_string(expert);
        return;
      }
      if (expert >= 0) zones[expert / local][expert % local].push_back({rank, i});
    }
  }
  for (auto& [rank, arrival] : operation.arrivals) {
    const epd_prepare_args& args = *arrival.prepare;
    std::memset(args.handle_mem, 0, args.handle_mem_bytes);
    *static_cast<PlanHead*>(args.handle_mem) = {kPlanMagic, static_cast<std::int32_t>(rank),
                                                static_cast<std::int32_t>(args.num_tokens),
                                                static_cast<std::int32_t>(args.top_k)};
    for (std::uint64_t i = 0; i < args.num_tokens * args.top_k; ++i) {
      RoutesOf(args.handle_mem)[i] = {-1, 0};
    }
  }
  for (std::int64_t owner = 0; owner < ranks; ++owner) {
    const epd_prepare_args& own = *operation.arrivals.at(owner).prepare;
    const std::int64_t alignment = own.alignment == 0 ? 1 : own.alignment;
    std::int64_t slot = 0;
    for (std::int64_t e = 0; e < local; ++e) {
      const std::int64_t begin = slot;
      for (const auto& [rank, i] : zones[owner][e]) {
        RoutesOf(operation.arrivals.at(rank).prepare->handle_mem)[i] = {
            static_cast<std::int32_t>(owner), static_cast<std::int32_t>(slot++)};
      }
      slot = (slot + alignment - 1) / alignment * alignment;
      own.token_counts[e] = static_cast<std::int32_t>(slot - begin);
    }
    *own.total_recv = static_cast<std::int32_t>(slot);
  }
}

std::size_t RowBytes(std::uint32_t hidden, epd_dtype dtype) {
  return std::size_t{hidden} * epd::shm::DtypeBytes(static_cast<std::uint32_t>(dtype));
}

void FinishScatter(Operation& operation) {
  for (auto& [rank, arrival] : operation.arrivals) {
    const epd_scatter_args& args = *arrival.scatter;
    std::memset(args.recv_tokens, 0, args.recv_capacity * RowBytes(args.hidden, args.dtype));
    if (args.recv_topk_weights != nullptr) {
      std::memset(args.recv_topk_weights, 0, args.recv_capacity * sizeof(float));
    }
  }
  for (auto& [rank, arrival] : operation.arrivals) {
    const epd_scatter_args& args = *arrival.scatter;
    const std::size_t row = RowBytes(args.hidden, args.dtype);
    for (std::uint64_t i = 0; i < args.num_tokens * args.top_k; ++i) {
      const Route route = RoutesOf(args.handle_mem)[i];
      if (route.dst < 0) continue;
      const epd_scatter_args& to = *operation.arrivals.at(route.dst).scatter;
      if (route.slot >= static_cast<std::int64_t>(to.recv_capacity)) continue;
      std::memcpy(static_cast<char*>(to.recv_tokens) + route.slot * row,
                  static_cast<const char*>(args.tokens) + i / args.top_k * row, row);
      if (args.topk_weights != nullptr) to.recv_topk_weights[route.slot] = args.topk_weights[i];
    }
  }
}

float Load(const void* row, std::uint64_t i, epd_dtype dtype) {
  if (dtype == EPD_DTYPE_FLOAT32) return static_cast<const float*>(row)[i];
  const std::uint32_t wide = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(row)[i])
                             << 16;  // bfloat16; float16 is not needed here.
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

void Store(void* row, std::uint64_t i, float value, epd_dtype dtype) {
  if (dtype == EPD_DTYPE_FLOAT32) {
    static_cast<float*>(row)[i] = value;
    return;
  }
  std::uint32_t wide;
  std::memcpy(&wide, &value, 4);
  wide += 0x7fff + ((wide >> 16) & 1);
  static_cast<std::uint16_t*>(row)[i] = static_cast<std::uint16_t>(wide >> 16);
}

void FinishGather(Operation& operation) {
  for (auto& [rank, arrival] : operation.arrivals) {
    const epd_gather_args& args = *arrival.gather;
    const std::size_t row = RowBytes(args.hidden, args.dtype);
    for (std::uint64_t t = 0; t < args.num_tokens; ++t) {
      std::vector<float> sum(args.hidden, 0.0F);
      for (std::uint32_t k = 0; k < args.top_k; ++k) {
        const Route route = RoutesOf(args.handle_mem)[t * args.top_k + k];
        float weight = 0;
        if (route.dst >= 0) {
          const epd_gather_args& from = *operation.arrivals.at(route.dst).gather;
          if (route.slot < static_cast<std::int64_t>(from.recv_capacity)) {
            const char* const source =
                static_cast<const char*>(from.expert_rows) + route.slot * row;
            for (std::uint32_t h = 0; h < args.hidden; ++h) sum[h] += Load(source, h, args.dtype);
            if (from.recv_topk_weights != nullptr) weight = from.recv_topk_weights[route.slot];
          }
        }
        if (args.topk_weights != nullptr) args.topk_weights[t * args.top_k + k] = weight;
      }
      char* const out = static_cast<char*>(args.tokens) + t * row;
      for (std::uint32_t h = 0; h < args.hidden; ++h) Store(out, h, sum[h], args.dtype);
    }
  }
}

// Joins the operation that the other ranks know by the same key; the last one makes the exchange.
int JoinOperation(epd_group* group, const std::string& what, const epd_key& key,
                  const Arrival& arrival, const std::function<void(Operation&)>& exchange,
                  epd_error* error) {
  World& w = world();
  std::unique_lock lock(w.mutex);
  w.calls.push_back({what, group->name, arrival.rank,
                     std::vector<std::uint8_t>(key.program, key.program + 16), key.execution,
                     key.ordinal, key.occurrence});
  if (group->client->cut) return Fail(error, 14, "[epd:UNAVAILABLE] the daemon is gone");
  const std::string name = key.name == nullptr ? "" : key.name;
  const std::uint64_t execution =
      key.name == nullptr ? key.execution : group->begun[{arrival.rank, name}]++;
  const std::string id = group->name + '/' + name + '/' +
                         std::string(reinterpret_cast<const char*>(key.program), 16) + '/' +
                         std::to_string(execution) + '/' + std::to_string(key.ordinal) + '/' +
                         std::to_string(key.occurrence);
  auto& slot = w.operations[id];
  if (slot == nullptr) slot = std::make_shared<Operation>();
  const std::shared_ptr<Operation> operation = slot;
  operation->arrivals[arrival.rank] = arrival;
  if (arrival.refuse != nullptr) {
    operation->code = arrival.refuse->code;
    operation->text = arrival.refuse->text;
  }
  if (operation->arrivals.size() == group->spec.num_ranks) {
    if (operation->code == 0) exchange(*operation);
    operation->done = true;
    w.operations.erase(id);
    w.changed.notify_all();
  }
  const bool ended = w.changed.wait_for(lock, std::chrono::seconds(20),
                                        [&] { return operation->done || group->client->cut; });
  if (!ended) return Fail(error, 4, "[epd:DEADLINE_EXCEEDED] " + what + ": ranks are missing");
  if (!operation->done) return Fail(error, 14, "[epd:UNAVAILABLE] the daemon is gone");
  return operation->code == 0 ? 0 : Fail(error, operation->code, operation->text);
}

int Scatter(epd_group* group, const char* name, const epd_scatter_args* args, epd_error* error) {
  return JoinOperation(group, name, args->key, {.rank = args->rank, .scatter = args}, FinishScatter,
                       error);
}

int Gather(epd_group* group, const char* name, const epd_gather_args* args, epd_error* error) {
  return JoinOperation(group, name, args->key, {.rank = args->rank, .gather = args}, FinishGather,
                       error);
}

}  // namespace

namespace epd::fake {

std::vector<Call> Calls() {
  const std::lock_guard lock(world().mutex);
  return world().calls;
}
std::string last_join() {
  const std::lock_guard lock(world().mutex);
  return world().last_join;
}

int num_sessions() {
  const std::lock_guard lock(world().mutex);
  return world().sessions;
}
int num_groups() {
  const std::lock_guard lock(world().mutex);
  return world().groups;
}
void Reset() {
  const std::lock_guard lock(world().mutex);
  world().calls.clear();
  world().operations.clear();
  world().connect_failures = world().join_code = 0;
}
void CutSessions() {
  const std::lock_guard lock(world().mutex);
  for (epd_client* client : world().clients) client->cut = true;
  world().changed.notify_all();
}
void EndGroups(int code) {
  const std::lock_guard lock(world().mutex);
  ++world().generation;
  world().ended_code = code;
}

void StopInOrder(int stopping) {
  const std::lock_guard lock(world().mutex);
  for (epd_client* client : world().clients) client->stopping = stopping;
}
void FailNextConnects(int code, int times) {
  const std::lock_guard lock(world().mutex);
  world().connect_code = code;
  world().connect_failures = times;
}
void FailNextJoin(int code) {
  const std::lock_guard lock(world().mutex);
  world().join_code = code;
}

}  // namespace epd::fake

struct epd_pending {
  epd_group* group;
  epd_operation operation;
  std::vector<unsigned char> args;
};

namespace {

std::vector<unsigned char> CopyOf(epd_operation operation, const void* args) {
  const bool prepares = operation == EPD_OPERATION_PREPARE;
  const bool scatters =
      operation == EPD_OPERATION_DISPATCH || operation == EPD_OPERATION_COMBINE_BACKWARD;
  const bool ragged = operation == EPD_OPERATION_RAGGED_ALL_TO_ALL;
  const std::size_t bytes = prepares   ? sizeof(epd_prepare_args)
                            : scatters ? sizeof(epd_scatter_args)
                            : ragged   ? sizeof(epd_ragged_args)
                                       : sizeof(epd_gather_args);
  const auto* begin = static_cast<const unsigned char*>(args);
  return {begin, begin + bytes};
}

}  // namespace

extern "C" {

int epd_connect(const epd_connect_args*, epd_client** client, epd_error* error) {
  const std::lock_guard lock(world().mutex);
  if (world().connect_failures > 0) {
    --world().connect_failures;
    return Fail(error, world().connect_code, "[epd:FAKE] no daemon");
  }
  *client = new epd_client;
  world().clients.push_back(*client);
  ++world().sessions;
  return 0;
}

void epd_disconnect(epd_client* client) {
  const std::lock_guard lock(world().mutex);
  std::erase(world().clients, client);
  --world().sessions;
  delete client;
}

int epd_check(epd_client* client, epd_error* error) {
  const std::lock_guard lock(world().mutex);
  return client->cut ? Fail(error, 14, "[epd:UNAVAILABLE] the daemon is gone") : 0;
}

const char* epd_socket_path(const epd_client*) { return "/fake/epd.sock"; }

int epd_join(epd_client* client, const epd_join_args* args, epd_group** group, epd_error* error) {
  const std::lock_guard lock(world().mutex);
  if (const int code = std::exchange(world().join_code, 0); code != 0) {
    return Fail(error, code, "[epd:FAKE] join failed");
  }
  *group = new epd_group;
  (*group)->client = client;
  client->stopping = EPD_GROUP_STAYS;
  (*group)->name = args->spec->name;
  (*group)->spec = *args->spec;
  (*group)->generation = world().generation;
  const auto text = [](const char* given) { return std::string(given == nullptr ? "" : given); };
  static std::uint64_t joins = 0;
  (*group)->plans = args->plans.group_id != 0 ? args->plans : epd_plans{++joins, 1};
  world().last_join = text(args->program) + "|" + text(args->metadata);
  ++world().groups;
  return 0;
}

int epd_leave(epd_group* group, epd_error*) {
  const std::lock_guard lock(world().mutex);
  --world().groups;
  delete group;
  return 0;
}

int epd_group_get_info(epd_group* group, epd_group_info* info) {
  const std::lock_guard lock(world().mutex);
  info->epoch = 1;
  info->num_ranks = group->spec.num_ranks;
  info->stopping = group->client->stopping;
  info->plans = group->plans;
  return 0;
}

int epd_group_check(epd_group* group, epd_error* error) {
  const std::lock_guard lock(world().mutex);
  return group->generation == world().generation
             ? 0
             : Fail(error, world().ended_code, "[epd:FAKE] the group has ended");
}

uint64_t epd_begin_execution(epd_group* group, uint32_t rank, const uint8_t program[16]) {
  const std::lock_guard lock(world().mutex);
  return group->begun[{rank, std::string(reinterpret_cast<const char*>(program), 16)}]++;
}

size_t epd_handle_mem_size(uint32_t, uint32_t, uint32_t max_tokens, uint32_t top_k) {
  return sizeof(PlanHead) + std::size_t{max_tokens} * top_k * sizeof(Route);
}

int epd_prepare(epd_group* group, const epd_prepare_args* args, epd_error* error) {
  return JoinOperation(
      group, "prepare", args->key, {.rank = args->rank, .prepare = args},
      [group](Operation& operation) { FinishPrepare(*group, operation); }, error);
}

int epd_dispatch(epd_group* group, const epd_scatter_args* args, epd_error* error) {
  return Scatter(group, "dispatch", args, error);
}
int epd_combine_backward(epd_group* group, const epd_scatter_args* args, epd_error* error) {
  return Scatter(group, "combine backward", args, error);
}
int epd_combine(epd_group* group, const epd_gather_args* args, epd_error* error) {
  return Gather(group, "combine", args, error);
}
int epd_dispatch_backward(epd_group* group, const epd_gather_args* args, epd_error* error) {
  return Gather(group, "dispatch backward", args, error);
}

int epd_ragged_all_to_all(epd_group*, const epd_ragged_args*, epd_error* error) {
  return Fail(error, 12, "[epd:FAKE] moves no slices");
}

int epd_try(epd_group* group, const epd_try_args* given, epd_pending** pending, epd_error* error) {
  const epd_operation operation = given->operation;
  const void* const args = given->args;
  if (given->wait_ns >= 0) {
    // Nobody else comes so fast.
    *pending = new epd_pending{group, operation, CopyOf(operation, args)};
    return EPD_PENDING;
  }
  switch (operation) {
    case EPD_OPERATION_PREPARE:
      return epd_prepare(group, static_cast<const epd_prepare_args*>(args), error);
    case EPD_OPERATION_DISPATCH:
      return epd_dispatch(group, static_cast<const epd_scatter_args*>(args), error);
    case EPD_OPERATION_COMBINE_BACKWARD:
      return epd_combine_backward(group, static_cast<const epd_scatter_args*>(args), error);
    case EPD_OPERATION_COMBINE:
      return epd_combine(group, static_cast<const epd_gather_args*>(args), error);
    case EPD_OPERATION_DISPATCH_BACKWARD:
      return epd_dispatch_backward(group, static_cast<const epd_gather_args*>(args), error);
    case EPD_OPERATION_RAGGED_ALL_TO_ALL:
      return epd_ragged_all_to_all(group, static_cast<const epd_ragged_args*>(args), error);
  }
  return Fail(error, 3, "[epd:FAKE] no such operation");
}

int epd_finish(epd_pending* given, epd_error* error) {
  const std::unique_ptr<epd_pending> pending(given);
  const epd_try_args args = {sizeof args, pending->operation, pending->args.data(), -1};
  return epd_try(pending->group, &args, nullptr, error);
}

int epd_refuse(epd_group* group, const epd_refuse_args* args, epd_error* error) {
  return JoinOperation(
      group, "refuse", args->key, {.rank = args->rank, .refuse = args}, [](Operation&) {}, error);
}

}  // extern "C"
