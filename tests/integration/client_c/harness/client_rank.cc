#include "tests/integration/client_c/harness/client_rank.h"

#include <algorithm>
#include <memory>
#include <thread>

namespace epd::testing {
namespace {

// Outputs start with this, so that bytes which nobody wrote are seen.
constexpr uint8_t kPoison = 0xa5;

struct Error {
  Error() : value(std::make_unique<epd_error>()) { value->struct_size = sizeof *value; }
  Result Take(int code) const {
    Result result{code, value->message};
    if (code != value->code && code != EPD_OK) result.message += " (error.code differs)";
    return result;
  }
  std::unique_ptr<epd_error> value;
};

epd_key Key(const std::string& name) {
  epd_key key = {};
  key.struct_size = sizeof key;
  key.name = name.c_str();
  key.execution = EPD_EXECUTION_NEXT;
  return key;
}

template <typename Values>
std::string Difference(const char* what, const Values& got, const Values& expected) {
  if (got.size() != expected.size()) return std::string(what) + ": sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) +
           ", expected " + std::to_string(expected[i]);
  }
  return "";
}

// The columns of rows [num_rows, `row_bytes`], an array for each of `widths`, whose sum is `row_bytes`.
std::vector<Bytes> Split(const Bytes& rows, const std::vector<size_t>& widths, size_t row_bytes) {
  std::vector<Bytes> arrays;
  size_t begin = 0;
  for (const size_t width : widths) {
    Bytes& array = arrays.emplace_back();
    for (size_t at = begin; at < rows.size(); at += row_bytes) {
      array.insert(array.end(), rows.begin() + at, rows.begin() + at + width);
    }
    begin += width;
  }
  return arrays;
}

// And back.
void Merge(const std::vector<Bytes>& arrays, const std::vector<size_t>& widths, size_t row_bytes,
           Bytes* rows) {
  size_t begin = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const size_t width = widths[i];
    for (size_t row = 0; row * row_bytes < rows->size(); ++row) {
      std::copy_n(arrays[i].begin() + row * width, width, rows->begin() + row * row_bytes + begin);
    }
    begin += width;
  }
}

}  // namespace

Result Connect(const std::string& socket, epd_client** client) {
  const Error error;
  epd_connect_args args = {};
  args.struct_size = sizeof args;
  args.socket_path = socket.c_str();
  args.client_name = "test";
  args.no_autostart = 1;
  return error.Take(epd_connect(&args, client, error.value.get()));
}

ClientRank::~ClientRank() {
  if (group_ != nullptr && !borrowed_) epd_leave(group_, nullptr);
}

Result ClientRank::Join(const JoinOptions& options) {
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.name = options.group.c_str();
  spec.instance = options.instance.c_str();
  spec.tenant = options.tenant.c_str();
  spec.num_ranks = case_.num_ranks;
  spec.num_experts = case_.num_experts;
  spec.expert_owner = case_.expert_owner.empty() ? nullptr : case_.expert_owner.data();
  spec.max_tokens_per_rank = case_.max_tokens();
  spec.recv_capacity_per_rank = case_.recv_capacity();
  spec.hidden = case_.hidden;
  spec.top_k = case_.top_k;
  spec.max_token_dtype = case_.dtype;
  spec.drop_on_overflow = case_.drop ? 1 : 0;
  spec.executor = case_.worker_executor ? EPD_EXECUTOR_WORKER : options.executor;
  if (!options.backend.empty()) spec.backend = options.backend.c_str();
  spec.warn_after_ms = options.warn_after_ms;
  spec.absent_ms = options.absent_ms;
  spec.undecided_ms = options.undecided_ms;
  spec.form_ms = options.form_ms;
  epd_join_args args = {};
  args.struct_size = sizeof args;
  args.spec = &spec;
  std::vector<uint32_t> ranks = {rank_};
  std::vector<const char*> devices = {options.device.c_str()};
  for (const auto& [rank, device] : options.also) {
    ranks.push_back(rank);
    devices.push_back(device.c_str());
  }
  args.ranks = ranks.data();
  args.num_ranks = ranks.size();
  args.devices = options.device.empty() ? nullptr : devices.data();
  args.program = options.program.c_str();
  args.metadata = options.metadata.c_str();
  args.plans = options.plans;
  const Error error;
  return error.Take(epd_join(client_, &args, &group_, error.value.get()));
}

Result ClientRank::Leave() {
  const Error error;
  const int code = epd_leave(group_, error.value.get());
  group_ = nullptr;
  return error.Take(code);
}

epd_group_info ClientRank::Info() const {
  epd_group_info info = {};
  info.struct_size = sizeof info;
  epd_group_get_info(group_, &info);
  return info;
}

Result ClientRank::Prepare(const RankData& data, const std::string& name) {
  std::vector<int32_t> narrow(data.topk_idx.begin(), data.topk_idx.end());
  token_counts.assign(case_.num_local_experts(rank_), -1);
  total_recv = -1;
  plan.assign(
      epd_handle_mem_size(case_.num_ranks, case_.num_experts, case_.max_tokens(), case_.top_k),
      kPoison);
  int32_t none = 0;
  epd_prepare_args args = {};
  args.struct_size = sizeof args;
  args.rank = rank_;
  args.key = Key(name);
  args.topk_idx =
      case_.wide_indices ? static_cast<const void*>(data.topk_idx.data()) : narrow.data();
  args.idx_bytes = case_.wide_indices ? 8 : 4;
  args.num_tokens = case_.tokens(rank_);
  args.top_k = case_.top_k;
  args.alignment = case_.alignment;
  args.token_counts = token_counts.empty() ? &none : token_counts.data();
  args.total_recv = &total_recv;
  args.handle_mem = plan.data();
  args.handle_mem_bytes = plan.size();
  const Error error;
  if (wait_ns) return Try(EPD_OPERATION_PREPARE, &args);
  return error.Take(epd_prepare(group_, &args, error.value.get()));
}

Result ClientRank::Try(epd_operation operation, const void* args) {
  const Error error;
  epd_pending* pending = nullptr;
  const epd_try_args tried = {sizeof tried, operation, args, *wait_ns};
  int code = epd_try(group_, &tried, &pending, error.value.get());
  if ((code == EPD_PENDING) != (pending != nullptr)) return {13, "pending, or not?"};
  ++(code == EPD_PENDING ? num_pending : num_at_once);
  if (code == EPD_PENDING) {
    std::thread([&] { code = epd_finish(pending, error.value.get()); }).join();
  }
  return error.Take(code);
}

Result ClientRank::Scatter(bool dispatch, const RankData& data, const std::string& name) {
  recv_tokens.assign(size_t{case_.recv_capacity(rank_)} * case_.row_bytes(), kPoison);
  recv_weights.assign(case_.recv_capacity(rank_), -1000);
  if (on_poisoned) on_poisoned(recv_tokens);
  epd_scatter_args args = {};
  args.struct_size = sizeof args;
  args.rank = rank_;
  args.key = Key(name);
  args.handle_mem = plan.data();
  args.handle_mem_bytes = plan.size();
  args.top_k = case_.top_k;
  args.alignment = case_.alignment;
  args.dtype = case_.dtype;
  args.hidden = case_.hidden;
  args.num_tokens = case_.tokens(rank_);
  args.tokens = data.tokens.data();
  args.topk_weights = dispatch ? data.topk_weights.data() : nullptr;
  args.recv_capacity = case_.recv_capacity(rank_);
  args.recv_tokens = recv_tokens.data();
  args.recv_topk_weights = dispatch ? recv_weights.data() : nullptr;
  std::vector<size_t> widths;
  for (const uint32_t array : case_.arrays) widths.push_back(array * case_.element_bytes());
  const std::vector<Bytes> in = Split(data.tokens, widths, case_.row_bytes());
  std::vector<Bytes> out = Split(recv_tokens, widths, case_.row_bytes());
  std::vector<epd_more_rows> more;
  for (size_t i = 1; i < in.size(); ++i) {
    more.push_back({case_.dtype, case_.arrays[i], in[i].data(), out[i].data()});
  }
  if (!in.empty()) {
    args.hidden = case_.arrays[0];
    args.tokens = in[0].data();
    args.recv_tokens = out[0].data();
    args.more = more.data();
    args.num_more = static_cast<uint32_t>(more.size());
  }
  const Error error;
  const epd_operation operation =
      dispatch ? EPD_OPERATION_DISPATCH : EPD_OPERATION_COMBINE_BACKWARD;
  const Result result = wait_ns ? Try(operation, &args)
                        : dispatch
                            ? error.Take(epd_dispatch(group_, &args, error.value.get()))
                            : error.Take(epd_combine_backward(group_, &args, error.value.get()));
  Merge(out, widths, case_.row_bytes(), &recv_tokens);
  return result;
}

Result ClientRank::Gather(bool combine, const RankData& data, const std::string& name) {
  tokens.assign(size_t{case_.tokens(rank_)} * case_.row_bytes(), kPoison);
  weights.assign(size_t{case_.tokens(rank_)} * case_.top_k, -1000);
  if (on_poisoned) on_poisoned(tokens);
  epd_gather_args args = {};
  args.struct_size = sizeof args;
  args.rank = rank_;
  args.key = Key(name);
  args.handle_mem = plan.data();
  args.handle_mem_bytes = plan.size();
  args.top_k = case_.top_k;
  args.alignment = case_.alignment;
  args.dtype = case_.dtype;
  args.hidden = case_.hidden;
  args.recv_capacity = case_.recv_capacity(rank_);
  args.expert_rows = data.expert_out.data();
  args.recv_topk_weights = combine ? nullptr : data.expert_weights.data();
  args.num_tokens = case_.tokens(rank_);
  args.tokens = tokens.data();
  args.topk_weights = combine ? nullptr : weights.data();
  if (wait_ns) {
    return Try(combine ? EPD_OPERATION_COMBINE : EPD_OPERATION_DISPATCH_BACKWARD, &args);
  }
  const Error error;
  return error.Take(combine ? epd_combine(group_, &args, error.value.get())
                            : epd_dispatch_backward(group_, &args, error.value.get()));
}

Result ClientRank::Dispatch(const RankData& data, const std::string& name) {
  return Scatter(true, data, name);
}
Result ClientRank::CombineBackward(const RankData& data, const std::string& name) {
  return Scatter(false, data, name);
}
Result ClientRank::Combine(const RankData& data, const std::string& name) {
  return Gather(true, data, name);
}
Result ClientRank::DispatchBackward(const RankData& data, const std::string& name) {
  return Gather(false, data, name);
}

std::string ClientRank::RunAndCompare(const RankData& data, const std::string& prefix) {
  if (Result r = Prepare(data, prefix + "prepare"); !r.ok()) return r.message;
  std::string diff = Difference("token_counts", token_counts, data.token_counts);
  if (total_recv != data.total_recv) diff = "total_recv is " + std::to_string(total_recv);
  if (!diff.empty()) return diff;
  if (Result r = Dispatch(data, prefix + "dispatch"); !r.ok()) return r.message;
  diff = Difference("dispatch rows", recv_tokens, data.recv_tokens);
  if (diff.empty()) diff = Difference("dispatch weights", recv_weights, data.recv_weights);
  if (!diff.empty()) return diff;
  if (Result r = Combine(data, prefix + "combine"); !r.ok()) return r.message;
  diff = Difference("combine rows", tokens, data.combined);
  if (!diff.empty()) return diff;
  if (Result r = DispatchBackward(data, prefix + "dispatch_bwd"); !r.ok()) return r.message;
  diff = Difference("dispatch backward rows", tokens, data.combined);
  if (diff.empty()) diff = Difference("dispatch backward weights", weights, data.weight_grads);
  if (!diff.empty()) return diff;
  if (Result r = CombineBackward(data, prefix + "combine_bwd"); !r.ok()) return r.message;
  return Difference("combine backward rows", recv_tokens, data.recv_tokens);
}

}  // namespace epd::testing
