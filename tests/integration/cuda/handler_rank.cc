#include "tests/integration/cuda/handler_rank.h"

#include "client/cuda/open_stream_group.h"
#include "client/jax/epd_jax.h"
#include "client/program/device_groups.h"
#include "tests/integration/client_c/harness/rank_process.h"
#include "tests/integration/client_c/harness/running_daemon.h"

namespace epd::testing {
namespace {

constexpr char kAlias[] = "default";

epd_error NoError() {
  epd_error error = {};
  error.struct_size = sizeof error;
  return error;
}

}  // namespace

HandlerRank::HandlerRank(const std::string& socket, const ExchangeCase& c, uint32_t rank,
                         int device)
    : case_(c),
      rank_(rank),
      device_(device),
      num_tokens_(c.tokens(rank)),
      topk_(c.tokens(rank) * c.top_k * sizeof(int32_t)),
      tokens_(c.tokens(rank) * c.row_bytes()),
      weights_(c.tokens(rank) * c.top_k * sizeof(float)),
      expert_out_(c.recv_capacity() * c.row_bytes()),
      expert_weights_(c.recv_capacity() * sizeof(float)),
      counts_(c.num_local_experts(rank) * sizeof(int32_t)),
      total_(sizeof(int32_t)),
      plan_(epd_program_handle_mem_size(c.num_ranks, c.num_experts, c.max_tokens(), c.top_k)),
      recv_(expert_out_.bytes),
      recv_weights_(expert_weights_.bytes),
      combined_(tokens_.bytes),
      grad_tokens_(tokens_.bytes),
      grad_weights_(weights_.bytes),
      grad_expert_(expert_out_.bytes) {
  sites_ = jax::FiveSites({.ranks = c.num_ranks,
                           .experts = c.num_experts,
                           .local_experts = c.num_local_experts(rank),
                           .max_tokens = c.max_tokens(),
                           .top_k = c.top_k,
                           .alignment = c.alignment,
                           .hidden = c.hidden,
                           .tokens = num_tokens_,
                           .capacity = c.recv_capacity(),
                           .plan_bytes = static_cast<int64_t>(plan_.bytes),
                           .scope = kScope},
                          {.topk = topk_.On<int32_t>(),
                           .tokens = tokens_.On<float>(),
                           .weights = weights_.On<float>(),
                           .expert_out = expert_out_.On<float>(),
                           .expert_weights = expert_weights_.On<float>(),
                           .cotangents = tokens_.On<float>(),
                           .counts = counts_.On<int32_t>(),
                           .total = total_.On<int32_t>(),
                           .plan = plan_.On<uint8_t>(),
                           .recv = recv_.On<float>(),
                           .recv_weights = recv_weights_.On<float>(),
                           .combined = combined_.On<float>(),
                           .grad_tokens = grad_tokens_.On<float>(),
                           .grad_weights = grad_weights_.On<float>(),
                           .grad_expert = grad_expert_.On<float>()});
  problem = Join(socket);
  if (problem.empty()) problem = OpenStream();
  if (problem.empty()) problem = jax::Load(sites_, device_).message;
}

HandlerRank::~HandlerRank() {
  sites_.clear();
  epd_jax_cuda_finalize(kAlias);
  epd_program_finalize(kAlias);
}

std::string HandlerRank::Join(const std::string& socket) {
  const std::string device = "cuda:" + std::to_string(device_);
  const epd_program_rank held = {
      .struct_size = sizeof held, .domain = 0, .position = rank_, .device = device.c_str()};
  epd_group_spec spec = {};
  spec.struct_size = sizeof spec;
  spec.instance = "1";
  spec.num_ranks = case_.num_ranks;
  spec.num_experts = case_.num_experts;
  spec.max_tokens_per_rank = case_.max_tokens();
  spec.recv_capacity_per_rank = case_.recv_capacity();
  spec.hidden = case_.hidden;
  spec.top_k = case_.top_k;
  spec.max_token_dtype = case_.dtype;
  spec.executor = case_.worker_executor ? EPD_EXECUTOR_WORKER : EPD_EXECUTOR_CLIENT;
  spec.backend = "cuda";
  epd_program_group group = {};
  group.struct_size = sizeof group;
  group.alias = kAlias;
  group.job = "handlers";
  group.socket_path = socket.c_str();
  group.spec = &spec;
  group.local_experts = case_.num_local_experts(rank_);
  group.held = &held;
  group.num_held = 1;
  group.devices = device.c_str();
  epd_error error = NoError();
  return epd_program_join(&group, &error) == EPD_OK ? "" : error.message;
}

std::string HandlerRank::OpenStream() {
  const client::CudaDriver& opened = client::ProcessDriver();
  if (!opened.problem.empty()) return opened.problem;
  cuda::Context context = nullptr;
  if (opened.table.primary_context_retain(&context, device_) != cuda::kSuccess ||
      opened.table.context_set_current(context) != cuda::kSuccess ||
      opened.table.stream_create(&stream_, cuda::kStreamNonBlocking) != cuda::kSuccess) {
    return "the fake device has no context and stream";
  }
  return "";
}

std::string HandlerRank::Step(const RankData& data, int num_executions) {
  for (DeviceBytes* out : {&counts_, &total_, &plan_, &recv_, &recv_weights_, &combined_,
                           &grad_tokens_, &grad_weights_, &grad_expert_}) {
    out->Poison();
  }
  topk_.Fill(std::vector<int32_t>(data.topk_idx.begin(), data.topk_idx.end()));
  tokens_.Fill(data.tokens);
  weights_.Fill(data.topk_weights);
  expert_out_.Fill(data.expert_out);
  expert_weights_.Fill(data.expert_weights);
  jax::Outcome put;
  for (int n = 0; n < num_executions && put.ok(); ++n) put = jax::Execute(sites_, device_, stream_);
  if (std::string late = Await(); !late.empty()) return late;
  // Of calls that were put before one failed: they have ended since.
  epd_error error = NoError();
  const bool failed = epd_jax_cuda_check(kAlias, &error) != EPD_OK;
  if (!put.ok()) return put.message;
  return failed ? error.message : Compare(data);
}

std::string HandlerRank::Await() const {
  const cuda::DriverTable& driver = client::ProcessDriver().table;
  const bool idle = Eventually(kPatienceSeconds / 3,
                               [&] { return driver.stream_query(stream_) == cuda::kSuccess; });
  return idle ? "" : "the stream does not end";
}

std::string HandlerRank::Compare(const RankData& data) const {
  const std::string differences[] = {
      Difference("token_counts", counts_, data.token_counts),
      Difference("total_recv", total_, std::vector<int32_t>{data.total_recv}),
      Difference("dispatch rows", recv_, data.recv_tokens),
      Difference("dispatch weights", recv_weights_, data.recv_weights),
      Difference("combine rows", combined_, data.combined),
      Difference("dispatch backward rows", grad_tokens_, data.combined),
      Difference("dispatch backward weights", grad_weights_, data.weight_grads),
      Difference("combine backward rows", grad_expert_, data.recv_tokens)};
  for (const std::string& difference : differences) {
    if (!difference.empty()) return difference;
  }
  return "";
}

}  // namespace epd::testing
