#include "daemon/backend/nccl_ep/ep_session.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/backend/nccl_ep/ep_handles.h"
#include "daemon/core/nccl_ep_limits.h"

namespace epd::nccl_ep {
namespace {

// A group's calls have few shapes; each costs device memory, for each handle.
constexpr size_t kMaxShapes = 16;

uint64_t Up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

absl::Status Check(const char* call, Result code) {
  if (code == kSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("NCCL EP: ", call, " returned ", code,
                                          "; what it has put into the stream can be ended by "
                                          "nobody, so this worker is replaced"));
}

// A tensor with its sizes; both live as long as the call.
template <size_t kDims>
struct Described : Tensor {
  Described(cuda::DevicePointer at, int data_type, std::array<int64_t, kDims> shape) {
    for (size_t i = 0; i < kDims; ++i) extent[i] = static_cast<size_t>(shape[i]);
    num_dims = kDims;
    type = data_type;
    memory = reinterpret_cast<void*>(at);
    dims = extent.data();
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  std::array<size_t, kDims> extent;
};
using Vector = Described<1>;
using Matrix = Described<2>;

}  // namespace

uint32_t LibrarySlots(const GroupSpec& group) {
  return static_cast<uint32_t>(
      Up(std::max(group.recv_capacity_per_rank, group.max_tokens_per_rank), kNcclEpMaxAlignment));
}

WarmUpRoom WarmUpRoomOf(const GroupSpec& group, int num_ranks) {
  constexpr uint64_t kUnit = 256;
  const uint64_t slots = LibrarySlots(group);
  WarmUpRoom room;
  const auto take = [&room](uint64_t bytes) {
    const uint64_t at = room.bytes;
    room.bytes += Up(bytes, kUnit);
    return at;
  };
  room.topk = take(group.top_k * sizeof(int32_t));
  room.rows = take(RowBytes(group));
  room.weights = take(group.top_k * sizeof(float));
  room.zones = take(group.num_experts / static_cast<uint32_t>(num_ranks) * sizeof(int32_t));
  room.total = take(sizeof(int32_t));
  room.landing = take(slots * RowBytes(group));
  room.landing_weights = take(slots * sizeof(float));
  return room;
}

absl::Status EpSession::UseContext() const {
  const cuda::Result code = options_.driver->context_set_current(options_.context);
  if (code == cuda::kSuccess) return absl::OkStatus();
  return absl::InternalError(Describe(*options_.driver, "cuCtxSetCurrent", code));
}

absl::Status EpSession::Enter() {
  if (absl::Status current = UseContext(); !current.ok()) return current;
  if (absl::Status split = Split(); !split.ok()) return split;
  if (absl::Status created = CreateGroup(); !created.ok()) return created;
  return WarmUp();
}

// The library takes "in progress" for a failure, so what is split off blocks. The parent's calls do not: it says how far the
// split is, and NCCL writes the new communicator only at the split's end, from a thread of its own (NCCL 2.28, init.cc).
absl::Status EpSession::Split() {
  cuda::NcclConfig config;
  config.blocking = 1;
  const cuda::NcclTable& nccl = *options_.nccl;
  const absl::Time deadline = absl::Now() + options_.form_limit;
  cuda::NcclResult code = nccl.split(options_.parent, 0, options_.rank, &comm_, &config);
  const auto is_made = [this] { return __atomic_load_n(&comm_, __ATOMIC_ACQUIRE) != nullptr; };
  const auto is_open = [&] {
    return code == cuda::kNcclInProgress || (code == cuda::kNcclSuccess && !is_made());
  };
  while (is_open() && absl::Now() < deadline) {
    usleep(500);
    cuda::NcclResult reported = cuda::kNcclSuccess;
    code = nccl.get_async_error(options_.parent, &reported);
    if (code == cuda::kNcclSuccess) code = reported;
  }
  if (code == cuda::kNcclSuccess && is_made()) return absl::OkStatus();
  if (is_open()) {
    return absl::DeadlineExceededError(
        absl::StrCat("ncclCommSplit for NCCL EP has given no communicator in ",
                     absl::FormatDuration(options_.form_limit)));
  }
  return absl::InternalError(absl::StrCat("ncclCommSplit for NCCL EP returned ", code));
}

absl::Status EpSession::CreateGroup() {
  const GroupSpec& group = options_.group;
  GroupConfig config;
  config.num_experts = group.num_experts;
  config.max_send_tokens =
      static_cast<uint32_t>(Up(group.max_tokens_per_rank, kNcclEpTokenMultiple));
  config.max_recv_slots = LibrarySlots(group);
  config.max_row_bytes = static_cast<uint32_t>(RowBytes(group));
  config.timeout_ns = static_cast<uint64_t>(absl::ToInt64Nanoseconds(options_.timeout));
  config.overflow = group.drop_on_overflow ? kOverflowDrop : kOverflowTrap;
  config.top_k = group.top_k;
  return Check("ncclEpCreateGroup", options_.library->create_group(&group_, comm_, &config));
}

absl::Status EpSession::WarmUp() {
  const GroupSpec& group = options_.group;
  const WarmUpRoom room = WarmUpRoomOf(group, options_.num_ranks);
  const cuda::DevicePointer at = options_.room;
  const auto slots = static_cast<int64_t>(LibrarySlots(group));
  cuda::LibraryCall call{.num_tokens = 1,
                         .top_k = static_cast<int32_t>(group.top_k),
                         .hidden = static_cast<int64_t>(RowBytes(group) / 2),
                         .alignment = 1,
                         .in_slots = slots,
                         .out_slots = slots,
                         .topk = at + room.topk,
                         .zone_slots = at + room.zones,
                         .total_slots = at + room.total};
  for (const shm::Kind kind : {shm::Kind::kDispatch, shm::Kind::kCombineBackward,
                               shm::Kind::kCombine, shm::Kind::kDispatchBackward}) {
    const bool scatters = kind == shm::Kind::kDispatch || kind == shm::Kind::kCombineBackward;
    const bool weights = kind == shm::Kind::kDispatch || kind == shm::Kind::kDispatchBackward;
    call.kind = kind;
    call.tells_routes = kind == shm::Kind::kDispatch;
    call.rows_in = at + (scatters ? room.rows : room.landing);
    call.rows_out = at + (scatters ? room.landing : room.rows);
    call.weights_in = !weights ? 0 : at + (scatters ? room.weights : room.landing_weights);
    call.weights_out = !weights ? 0 : at + (scatters ? room.landing_weights : room.weights);
    if (absl::Status run = Run(call); !run.ok()) return run;
  }
  return absl::OkStatus();
}

absl::StatusOr<Handle> EpSession::HandleFor(const cuda::LibraryCall& call) {
  const auto [found, is_new] =
      handles_.try_emplace({call.alignment, call.top_k, call.handle}, nullptr);
  if (!is_new) return found->second;
  if (handles_.size() > kMaxShapes * EpHandles::kOfEach) {
    return absl::InternalError(absl::StrCat("the calls of a group on NCCL EP have more than ",
                                            kMaxShapes, " pairs of alignment and top_k"));
  }
  HandleConfig config;
  config.alignment = static_cast<size_t>(call.alignment);
  const Result code = options_.library->init_handle(&found->second, group_, kExpertMajor, &config,
                                                    call.top_k, /*memory=*/nullptr);
  if (absl::Status made = Check("ncclEpInitHandle", code); !made.ok()) return made;
  return found->second;
}

absl::Status EpSession::Run(const cuda::LibraryCall& call) {
  if (absl::Status current = UseContext(); !current.ok()) return current;
  const absl::StatusOr<Handle> handle = HandleFor(call);
  if (!handle.ok()) return handle.status();
  if (call.tells_routes) {
    if (absl::Status updated = Update(*handle, call); !updated.ok()) return updated;
  }
  const bool scatters =
      call.kind == shm::Kind::kDispatch || call.kind == shm::Kind::kCombineBackward;
  return scatters ? Dispatch(*handle, call) : Combine(*handle, call);
}

absl::Status EpSession::Update(Handle handle, const cuda::LibraryCall& call) const {
  Matrix topk(call.topk, kInt32, {call.num_tokens, call.top_k});
  Vector zones(call.zone_slots, kInt32,
               {static_cast<int64_t>(options_.group.num_experts) / options_.num_ranks});
  Vector total(call.total_slots, kInt32, {1});
  LayoutReport report;
  report.expert_slots = &zones;
  report.total_slots = &total;
  return Check("ncclEpUpdateHandle",
               options_.library->update_handle(handle, &topk, &report, options_.stream));
}

// Weights go with a forward dispatch alone, and there they must.
absl::Status EpSession::Dispatch(Handle handle, const cuda::LibraryCall& call) const {
  const bool forward = call.kind == shm::Kind::kDispatch;
  Matrix rows(call.rows_in, kBfloat16, {call.num_tokens, call.hidden});
  Matrix weights(call.weights_in, kFloat32, {call.num_tokens, call.top_k});
  Matrix out(call.rows_out, kBfloat16, {call.out_slots, call.hidden});
  Vector out_weights(call.weights_out, kFloat32, {call.out_slots});
  DispatchInputs inputs;
  inputs.rows = &rows;
  inputs.weights = forward ? &weights : nullptr;
  DispatchOutputs outputs;
  outputs.rows = &out;
  outputs.weights = forward ? &out_weights : nullptr;
  DispatchConfig config;
  config.direction = forward ? kForward : kBackward;
  return Check("ncclEpDispatch",
               options_.library->dispatch(handle, &inputs, &outputs, /*none=*/nullptr, &config,
                                          options_.stream));
}

// Weights go with a backward combine alone, and there they must: without weights it is a forward one.
absl::Status EpSession::Combine(Handle handle, const cuda::LibraryCall& call) const {
  const bool backward = call.weights_in != 0;
  Matrix rows(call.rows_in, kBfloat16, {call.in_slots, call.hidden});
  Vector weights(call.weights_in, kFloat32, {call.in_slots});
  Matrix out(call.rows_out, kBfloat16, {call.num_tokens, call.hidden});
  Matrix out_weights(call.weights_out, kFloat32, {call.num_tokens, call.top_k});
  CombineInputs inputs;
  inputs.rows = &rows;
  inputs.weights = backward ? &weights : nullptr;
  CombineOutputs outputs;
  outputs.rows = &out;
  outputs.weights = backward ? &out_weights : nullptr;
  CombineConfig config;
  config.direction = backward ? kBackward : kForward;
  return Check("ncclEpCombine",
               options_.library->combine(handle, &inputs, &outputs, &config, options_.stream));
}

absl::Status EpSession::Leave() {
  if (absl::Status current = UseContext(); !current.ok()) return current;
  for (const auto& [shape, handle] : handles_) {
    const Result code = options_.library->destroy_handle(handle);
    if (absl::Status gone = Check("ncclEpHandleDestroy", code); !gone.ok()) return gone;
  }
  handles_.clear();
  if (group_ != nullptr) {
    const Result code = options_.library->destroy_group(group_);
    if (absl::Status gone = Check("ncclEpGroupDestroy", code); !gone.ok()) return gone;
    group_ = nullptr;
  }
  if (comm_ != nullptr) options_.nccl->abort(comm_);  // Local; frees it, whatever it returns.
  comm_ = nullptr;
  return absl::OkStatus();
}

}  // namespace epd::nccl_ep
