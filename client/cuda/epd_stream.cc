#include "client/cuda/epd_stream.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "client/c/c_status.h"
#include "client/c/digest.h"
#include "client/c/operation.h"
#include "client/c/plan_argument.h"
#include "client/c/struct_size.h"
#include "client/cuda/open_stream_group.h"
#include "client/cuda/stream_handles.h"

// The C functions are global, and all that they use is the client's.
using namespace epd::client;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::chrono::seconds kOpenDeadline{60};
constexpr size_t kScopeBytes = 31;  // As many as of a call on the host.

Status Null(const char* what) {
  return MakeStatus(Code::kInvalidArgument, "%s must not be NULL", what);
}

Status Open(const epd_stream_open_args* given, epd_stream_group** out) {
  epd_stream_open_args args;
  if (Status s = ReadStruct(given, "args", &args); !s.ok()) return s;
  if (args.group == nullptr) return Null("args.group");
  auto opened = std::make_unique<epd_stream_group>();
  const auto wait = args.timeout_ms <= 0
                        ? std::chrono::milliseconds(kOpenDeadline)
                        : std::chrono::milliseconds(std::min<int64_t>(args.timeout_ms, 1 << 30));
  Status status = OpenStreamGroup({*args.group, args.rank, args.device}, ProcessDriver(),
                                  Clock::now() + wait, &opened->group);
  if (status.ok()) *out = opened.release();
  return status;
}

Status ReadCall(const epd_stream_call& given, uint32_t rank, StreamCall* call) {
  if (given.operation < EPD_STREAM_PREPARE || given.operation > EPD_STREAM_COMBINE_BACKWARD) {
    return MakeStatus(Code::kInvalidArgument, "operation: got %d, expected an epd_stream_operation",
                      static_cast<int>(given.operation));
  }
  call->kind = static_cast<epd::shm::Kind>(given.operation);  // The numbers are the same.
  call->rank = rank;
  std::copy_n(given.program, call->program.size(), call->program.begin());
  call->ordinal = given.ordinal;
  if (given.scope != nullptr) {
    const std::string_view scope = given.scope;
    call->scope = scope.substr(scope.size() - std::min(scope.size(), kScopeBytes));
  }
  if (given.name != nullptr) {
    call->name = given.name;
    call->program = DigestOf(call->name);
  }
  call->top_k = given.top_k;
  call->alignment = given.alignment == 0 ? 1 : given.alignment;
  call->num_tokens = given.num_tokens;
  if (call->kind == epd::shm::Kind::kPrepare) return {};
  call->recv_capacity = given.recv_capacity;
  call->dtype = static_cast<uint32_t>(given.dtype);
  call->row_bytes = given.hidden * DtypeBytes(given.dtype);
  call->has_weights =
      call->kind == epd::shm::Kind::kDispatch || call->kind == epd::shm::Kind::kDispatchBackward;
  return {};
}

Status AddSite(epd_stream_group* streams, const epd_stream_call* given, epd_stream_site** out) {
  epd_stream_call read;
  if (streams == nullptr) return Null("streams");
  if (Status s = ReadStruct(given, "call", &read); !s.ok()) return s;
  StreamCall call;
  if (Status s = ReadCall(read, streams->group->rank(), &call); !s.ok()) return s;
  const std::shared_ptr<const Formation> formation = streams->group->formation();
  Status fits = call.kind == epd::shm::Kind::kPrepare
                    ? CheckTokens(*formation, call.top_k, call.num_tokens)
                    : CheckSizes(*formation, {.top_k = call.top_k,
                                              .dtype = read.dtype,
                                              .hidden = read.hidden,
                                              .num_tokens = call.num_tokens,
                                              .recv_capacity = call.recv_capacity});
  if (fits.ok())
    fits = FromKernel(CheckRoutingSpec(formation->Routing(call.top_k, call.alignment)));
  if (!fits.ok()) return fits;
  auto site = std::make_unique<epd_stream_site>();
  site->group = streams->group;
  if (Status s = streams->group->AddSite(call, &site->site); !s.ok()) return s;
  *out = site.release();
  return {};
}

Status Put(const epd_stream_site& site, const epd_stream_buffers* given, void* stream) {
  StreamBuffers buffers;
  if (Status s = ReadStruct<epd_stream_buffers>(given, "buffers", &buffers); !s.ok()) return s;
  if (buffers.topk_idx != nullptr && buffers.idx_bytes != 4 && buffers.idx_bytes != 8) {
    return MakeStatus(Code::kInvalidArgument, "idx_bytes: got %u, expected 4 or 8",
                      buffers.idx_bytes);
  }
  return site.group->Put(*site.site, buffers, static_cast<epd::cuda::Stream>(stream));
}

}  // namespace

int epd_stream_open(const epd_stream_open_args* args, epd_stream_group** streams,
                    epd_error* error) {
  return Guarded(error, [&] { return streams == nullptr ? Null("streams") : Open(args, streams); });
}

int epd_stream_check(epd_stream_group* streams, epd_error* error) {
  return Guarded(error, [&] {
    if (streams == nullptr) return Null("streams");
    return streams->group->Check();
  });
}

void epd_stream_close(epd_stream_group* streams) {
  if (streams == nullptr) return;
  GuardedCall([streams] {
    const std::unique_ptr<epd_stream_group> own(streams);
    streams->group->Close();
  });
}

int epd_stream_add_site(epd_stream_group* streams, const epd_stream_call* call,
                        epd_stream_site** site, epd_error* error) {
  return Guarded(error,
                 [&] { return site == nullptr ? Null("site") : AddSite(streams, call, site); });
}

void epd_stream_remove_site(epd_stream_site* site) {
  GuardedCall([site] { delete site; });
}

int epd_stream_put(epd_stream_site* site, const epd_stream_buffers* buffers, void* stream,
                   epd_error* error) {
  return Guarded(error, [&] {
    if (site == nullptr) return Null("site");
    return Put(*site, buffers, stream);
  });
}
