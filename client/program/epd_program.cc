#include "client/program/epd_program.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/c_status.h"
#include "client/c/job_name.h"
#include "client/c/struct_size.h"
#include "client/program/api_words.h"
#include "client/program/completer.h"
#include "client/program/groups.h"
#include "client/program/interpreter.h"
#include "client/program/program_call.h"

namespace epd::program {
namespace {

constexpr std::uint32_t kTopK = 1;  // Of a handshake.

const char* OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// A call as this library knows it.
struct Call {
  epd_program_call call;
  epd_program_sizes traced;
};

Status ReadCall(const epd_program_call* given, Call* read) {
  Status status = client::ReadStruct(given, "call", &read->call);
  if (!status.ok()) return status;
  read->call.alias = OrEmpty(read->call.alias);
  if (read->call.begun != nullptr) {
    epd_program_begun begun;
    status = client::ReadStruct(read->call.begun, "call.begun", &begun);
    if (!status.ok()) return status;
  }
  if (read->call.traced == nullptr) return {};
  status = client::ReadStruct(read->call.traced, "call.traced", &read->traced);
  read->call.traced = &read->traced;
  return status;
}

// A call with copies of what it was given.
struct OwnCall {
  Call read;
  std::optional<ProgramCall> call;

  Status Make(const epd_program_call* given, ProgramCall::Exchange exchange) {
    if (Status status = ReadCall(given, &read); !status.ok()) return status;
    call.emplace(Groups::Shared(), read.call, std::move(exchange));
    return {};
  }
};

// To its end. What it takes to keep `exchange` is taken under the guard.
template <typename Exchange>
int Run(const epd_program_call* given, const Exchange& exchange, epd_error* error) {
  return client::Guarded(error, [&]() -> Status {
    OwnCall own;
    const Status status = own.Make(given, exchange);
    return status.ok() ? own.call->Finish() : status;
  });
}

int Handshake(const ActiveCall& call, std::int64_t, epd_pending**, epd_error* error) {
  const epd_group_spec& spec = call.config().spec;
  std::vector<std::int32_t> token_counts(std::max(1u, call.config().local_experts));
  std::vector<std::uint8_t> handle_mem(
      epd_handle_mem_size(spec.num_ranks, spec.num_experts, spec.max_tokens_per_rank, kTopK));
  std::int32_t total = 0;
  epd_prepare_args args = {};
  args.struct_size = sizeof args;
  args.rank = call.rank();
  args.key = call.key();
  args.topk_idx = &total;  // Of no token.
  args.idx_bytes = sizeof total;
  args.top_k = kTopK;
  args.token_counts = token_counts.data();
  args.total_recv = &total;
  args.handle_mem = handle_mem.data();
  args.handle_mem_bytes = handle_mem.size();
  return epd_prepare(call.group(), &args, error);
}

}  // namespace
}  // namespace epd::program

struct epd_program_pending {
  epd::program::OwnCall own;
};

namespace epd::program {
namespace {

// Makes the C library's call of one operation, with what only the resolved call knows.
template <typename Args>
int RunOperation(epd_operation operation, const epd_program_call* call, const Args* given,
                 epd_error* error) {
  bool ended = true;
  const int code = client::Guarded(error, [&]() -> Status {
    Args args;
    if (Status status = client::ReadStruct(given, "args", &args); !status.ok()) return status;
    args.struct_size = sizeof args;
    const auto exchange = [operation, args](const ActiveCall& active, std::int64_t wait_ns,
                                            epd_pending** pending, epd_error* failure) mutable {
      args.rank = active.rank();
      args.key = active.key();
      const epd_try_args tried = {sizeof tried, operation, &args, wait_ns};
      return epd_try(active.group(), &tried, pending, failure);
    };
    auto made = std::make_unique<epd_program_pending>();
    if (Status status = made->own.Make(call, exchange); !status.ok()) return status;
    epd_program_pending** const pending = made->own.read.call.pending;
    if (pending == nullptr) return made->own.call->Finish();
    *pending = nullptr;
    ended = made->own.call->Try(std::max<std::int64_t>(made->own.read.call.wait_ns, 0));
    if (ended) return made->own.call->status();
    *pending = made.release();
    return {};
  });
  return ended ? code : EPD_PENDING;
}

}  // namespace
}  // namespace epd::program

using epd::client::Guarded;
using epd::client::GuardedCall;
using epd::client::GuardedOr;
using epd::program::Groups;
using epd::program::RunOperation;
using epd::program::Status;

int epd_program_connect(const char* socket_path, const char* daemon_path, epd_error* error) {
  return Guarded(error, [&] {
    return Groups::Shared().Connect(
        {epd::program::OrEmpty(socket_path), epd::program::OrEmpty(daemon_path)});
  });
}

size_t epd_program_socket_path(char* path, size_t path_bytes) {
  if (path_bytes > 0) *path = '\0';
  return GuardedOr<size_t>(0, [&] {
    const std::string found = Groups::Shared().socket_path();
    if (path_bytes > 0) std::snprintf(path, path_bytes, "%s", found.c_str());
    return found.size();
  });
}

size_t epd_program_job_of_environment(char* job, size_t job_bytes) {
  if (job_bytes > 0) *job = '\0';
  return GuardedOr<size_t>(0, [&] {
    const std::string found = epd::client::JobOfEnvironment();
    if (job_bytes > 0) std::snprintf(job, job_bytes, "%s", found.c_str());
    return found.size();
  });
}

int epd_program_join(const epd_program_group* group, epd_error* error) {
  return Guarded(error, [&] {
    std::shared_ptr<const epd::program::GroupConfig> config;
    Status status = epd::program::GroupConfig::Read(group, &config);
    if (status.ok()) status = Groups::Shared().Join(std::move(config));
    return status;
  });
}

void epd_program_describe_with(const char* prefix, epd_program_describe describe) {
  GuardedCall([&] { Groups::Shared().DescribeWith(prefix, describe); });
}

int epd_program_wait(const char* alias, epd_error* error) {
  return Guarded(error, [&] { return Groups::Shared().Wait(epd::program::OrEmpty(alias)); });
}

int epd_program_state(const char* alias, uint64_t* epoch) {
  uint64_t last = 0;
  const int state = GuardedOr<int>(EPD_PROGRAM_LOST, [&] {
    return Groups::Shared().State(epd::program::OrEmpty(alias), &last);
  });
  if (epoch != nullptr) *epoch = last;
  return state;
}

void epd_program_finalize(const char* alias) {
  GuardedCall([&] { Groups::Shared().Finalize(epd::program::OrEmpty(alias)); });
}

int epd_program_resolve(const epd_program_call* call, uint32_t* rank, epd_error* error) {
  return Guarded(error, [&] {
    epd::program::Call read;
    Status status = ReadCall(call, &read);
    if (status.ok()) status = Groups::Shared().Resolve(read.call, rank);
    return status;
  });
}

int epd_program_prepare(const epd_program_call* call, const epd_prepare_args* args,
                        epd_error* error) {
  return RunOperation(EPD_OPERATION_PREPARE, call, args, error);
}
int epd_program_dispatch(const epd_program_call* call, const epd_scatter_args* args,
                         epd_error* error) {
  return RunOperation(EPD_OPERATION_DISPATCH, call, args, error);
}
int epd_program_combine(const epd_program_call* call, const epd_gather_args* args,
                        epd_error* error) {
  return RunOperation(EPD_OPERATION_COMBINE, call, args, error);
}
int epd_program_dispatch_backward(const epd_program_call* call, const epd_gather_args* args,
                                  epd_error* error) {
  return RunOperation(EPD_OPERATION_DISPATCH_BACKWARD, call, args, error);
}
int epd_program_combine_backward(const epd_program_call* call, const epd_scatter_args* args,
                                 epd_error* error) {
  return RunOperation(EPD_OPERATION_COMBINE_BACKWARD, call, args, error);
}

int epd_program_ragged_all_to_all(const epd_program_call* call, const epd_ragged_args* args,
                                  epd_error* error) {
  return RunOperation(EPD_OPERATION_RAGGED_ALL_TO_ALL, call, args, error);
}

int epd_program_finish(epd_program_pending* pending, epd_error* error) {
  return epd::client::Guarded(error, [&]() -> Status {
    if (pending == nullptr) {
      return {epd::program::Code::kInvalidArgument, "pending must not be NULL"};
    }
    const std::unique_ptr<epd_program_pending> own(pending);
    return own->own.call->Finish();
  });
}

int epd_program_handshake(const epd_program_call* call, epd_error* error) {
  return epd::program::Run(call, epd::program::Handshake, error);
}

int epd_program_refuse(const epd_program_call* call, int32_t code, const char* text,
                       epd_error* error) {
  epd_refuse_args args = {};
  args.struct_size = sizeof args;
  args.code = code;
  args.text = text;
  const auto refuse = [args](const epd::program::ActiveCall& active, std::int64_t, epd_pending**,
                             epd_error* failure) mutable {
    args.rank = active.rank();
    args.key = active.key();
    return epd_refuse(active.group(), &args, failure);
  };
  return epd::program::Run(call, refuse, error);
}

int epd_program_start(void (*work)(void* context), void* context, epd_error* error) {
  return Guarded(error,
                 [&] { return epd::program::Completer::Shared().Run([=] { work(context); }); });
}

size_t epd_program_words(int code, const char* text, char* words, size_t words_bytes) {
  const char* const given = epd::program::OrEmpty(text);
  const auto put = [&](const char* said) {
    if (words_bytes > 0) std::snprintf(words, words_bytes, "%s", said);
    return std::strlen(said);
  };
  return GuardedOr<size_t>(put(given), [&] {
    return put(epd::program::InApiWords(epd::client::CodeFromNumber(code), given, /*call=*/nullptr)
                   .c_str());
  });
}

const char* epd_program_retry(int code, const char* text) {
  return GuardedOr<const char*>("", [&] {
    return epd::program::FindRemedy(epd::client::CodeFromNumber(code), epd::program::OrEmpty(text))
        .retry.data();
  });
}

void epd_program_set_interpreter(const epd_program_interpreter* interpreter) {
  GuardedCall([&] { epd::program::SetInterpreter(interpreter); });
}

size_t epd_program_handle_mem_size(uint32_t num_ranks, uint32_t num_experts,
                                   uint32_t max_tokens_per_rank, uint32_t top_k) {
  return epd_handle_mem_size(num_ranks, num_experts, max_tokens_per_rank, top_k);
}
