#include "client/c/attach_codec.h"

#include <utility>

#include "client/c/wire.h"

namespace epd::client {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

void WriteDuration(WireWriter& out, uint32_t field, int64_t ns) {
  if (ns == 0) return;
  WireWriter duration;
  duration.Int(1, ns / kNanosPerSecond);
  duration.Int(2, ns % kNanosPerSecond);
  out.Nested(field, duration.str());
}

std::string Encode(const Attach& m) {
  WireWriter out;
  out.Uint(1, m.min_version);
  out.Uint(2, m.max_version);
  out.Uint(3, m.features);
  out.Bytes(4, m.client_name);
  out.Bytes(5, m.client_version);
  return out.str();
}

std::string Encode(const Join& m) {
  WireWriter out;
  out.Uint(1, m.request_id);
  out.Nested(2, EncodeGroupSpec(m.spec));
  out.Packed(3, m.ranks);
  for (const std::string& device : m.devices) out.Nested(4, device);
  out.Uint(5, m.min_epoch);
  WriteDuration(out, 6, m.deadline_ns);
  out.Bytes(7, m.program);
  out.Bytes(8, m.metadata);
  return out.str();
}

std::string Encode(const Leave& m) {
  WireWriter out;
  out.Uint(1, m.request_id);
  out.Uint(2, m.group_id);
  return out.str();
}

std::string Encode(const Drained& m) {
  WireWriter out;
  out.Uint(1, m.group_id);
  out.Uint(2, m.formation);
  for (const Drained::Count& count : m.counts) {
    WireWriter nested;
    nested.Uint(1, count.rank);
    nested.Bytes(2, count.program);
    nested.Uint(3, count.begun);
    out.Nested(3, nested.str());
  }
  return out.str();
}

// Runs `read(reader)` for each field of the nested message that `in` stands on.
template <typename Read>
void ReadNested(WireReader& in, Read read) {
  WireReader nested(in.Bytes());
  while (nested.Next()) read(nested);
  if (!nested.ok()) in.Fail();
}

// Saturates: a hostile duration must not overflow.
int64_t ReadDuration(WireReader& in) {
  int64_t seconds = 0;
  int64_t nanos = 0;
  ReadNested(in, [&](WireReader& f) {
    if (f.field() == 1) seconds = static_cast<int64_t>(f.Uint());
    if (f.field() == 2) nanos = static_cast<int32_t>(f.Uint());
  });
  int64_t ns = 0;
  if (__builtin_mul_overflow(seconds, kNanosPerSecond, &ns) ||
      __builtin_add_overflow(ns, nanos, &ns)) {
    return seconds < 0 ? INT64_MIN : INT64_MAX;
  }
  return ns;
}

uint32_t U32(WireReader& in) { return static_cast<uint32_t>(in.Uint()); }
std::string Text(WireReader& in) { return std::string(in.Bytes()); }

void ReadStatus(WireReader& in, Status* status) {
  ReadNested(in, [&](WireReader& f) {
    if (f.field() == 1) status->code = CodeFromNumber(static_cast<int32_t>(f.Uint()));
    if (f.field() == 2) status->message = Text(f);
  });
}

void ReadDeadlines(WireReader& in, Deadlines* deadlines) {
  ReadNested(in, [&](WireReader& f) {
    switch (f.field()) {
      case 1:
        deadlines->warn_after_ns = ReadDuration(f);
        break;
      case 2:
        deadlines->absent_ns = ReadDuration(f);
        break;
      case 3:
        deadlines->undecided_ns = ReadDuration(f);
        break;
      case 4:
        deadlines->form_ns = ReadDuration(f);
        break;
    }
  });
}

void ReadSpec(WireReader& in, GroupSpec* spec) {
  ReadNested(in, [&](WireReader& f) {
    switch (f.field()) {
      case 1:
        spec->name = Text(f);
        break;
      case 2:
        spec->instance = Text(f);
        break;
      case 3:
        spec->tenant = Text(f);
        break;
      case 4:
        spec->num_ranks = U32(f);
        break;
      case 5:
        spec->num_experts = U32(f);
        break;
      case 6:
        f.Repeated([&](uint64_t v) { spec->expert_owner.push_back(static_cast<uint32_t>(v)); });
        break;
      case 7:
        spec->max_tokens_per_rank = U32(f);
        break;
      case 8:
        spec->recv_capacity_per_rank = U32(f);
        break;
      case 9:
        spec->hidden = U32(f);
        break;
      case 10:
        spec->top_k = U32(f);
        break;
      case 11:
        spec->max_token_dtype = static_cast<int32_t>(f.Uint());
        break;
      case 12:
        spec->drop_on_overflow = f.Uint() != 0;
        break;
      case 13:
        spec->executor = static_cast<Executor>(static_cast<int32_t>(f.Uint()));
        break;
      case 14:
        spec->backend = Text(f);
        break;
      case 15:
        ReadDeadlines(f, &spec->deadlines);
        break;
    }
  });
}

void Read(WireReader& f, Attached* m) {
  switch (f.field()) {
    case 1:
      m->version = U32(f);
      break;
    case 2:
      m->features = f.Uint();
      break;
    case 3:
      m->session_id = f.Uint();
      break;
    case 4:
      m->incarnation = f.Uint();
      break;
    case 5:
      m->node = Text(f);
      break;
    case 6:
      m->daemon_version = Text(f);
      break;
    case 7:
      m->daemon_pid = U32(f);
      break;
  }
}

void ReadArena(WireReader& in, Joined::Arena* arena) {
  ReadNested(in, [&](WireReader& f) {
    switch (f.field()) {
      case 1:
        arena->rank = U32(f);
        break;
      case 2:
        arena->bytes = f.Uint();
        break;
      case 3:
        arena->own = f.Uint() != 0;
        break;
      case 4:
        arena->sharing = static_cast<ArenaSharing>(f.Uint());
        break;
      case 5:
        arena->handle = f.Bytes();
        break;
      case 6:
        arena->device_uuid = f.Bytes();
        break;
    }
  });
}

void ReadMember(WireReader& in, Joined::Member* member) {
  ReadNested(in, [&](WireReader& f) {
    switch (f.field()) {
      case 1:
        member->rank = U32(f);
        break;
      case 2:
        member->node = Text(f);
        break;
      case 3:
        member->host = Text(f);
        break;
      case 4:
        member->pid = static_cast<int32_t>(f.Uint());
        break;
      case 5:
        member->client_name = Text(f);
        break;
      case 6:
        member->session_id = f.Uint();
        break;
      case 7:
        member->worker = Text(f);
        break;
    }
  });
}

void Read(WireReader& f, Joined* m) {
  switch (f.field()) {
    case 1:
      m->request_id = f.Uint();
      break;
    case 2:
      m->group_id = f.Uint();
      break;
    case 3:
      m->epoch = f.Uint();
      break;
    case 4:
      m->formation = f.Uint();
      break;
    case 5:
      ReadArena(f, &m->arenas.emplace_back());
      break;
    case 6:
      ReadMember(f, &m->members.emplace_back());
      break;
    case 7:
      ReadSpec(f, &m->spec);
      break;
    case 8:
      m->stream_region_offset = f.Uint();
      break;
    case 9:
      m->stream_region_bytes = f.Uint();
      break;
    case 10:
      ReadNested(f, [&slots = m->slots.emplace_back()](WireReader& in) {
        if (in.field() == 1) slots.worker = Text(in);
      });
      break;
  }
}

void Read(WireReader& f, JoinFailed* m) {
  if (f.field() == 1) m->request_id = f.Uint();
  if (f.field() == 2) ReadStatus(f, &m->status);
}

void Read(WireReader& f, Left* m) {
  if (f.field() == 1) m->request_id = f.Uint();
  if (f.field() == 2) ReadStatus(f, &m->status);
}

void Read(WireReader& f, Reform* m) {
  switch (f.field()) {
    case 1:
      m->group_id = f.Uint();
      break;
    case 2:
      m->formation = f.Uint();
      break;
    case 3:
      ReadStatus(f, &m->cause);
      break;
    case 4:
      m->wait = f.Uint() != 0;
      break;
  }
}

void Read(WireReader& f, GroupEnded* m) {
  if (f.field() == 1) m->group_id = f.Uint();
  if (f.field() == 2) ReadStatus(f, &m->status);
}

void Read(WireReader& f, Goodbye* m) {
  if (f.field() == 1) ReadStatus(f, &m->status);
}

// One member of the oneof. A body that comes twice is merged, as protobuf does.
template <typename Body>
void ReadBody(WireReader& in, ServerMessage* message) {
  if (!std::holds_alternative<Body>(*message)) *message = Body();
  ReadNested(in, [&](WireReader& f) { Read(f, &std::get<Body>(*message)); });
}

}  // namespace

std::string EncodeGroupSpec(const GroupSpec& spec) {
  WireWriter out;
  out.Bytes(1, spec.name);
  out.Bytes(2, spec.instance);
  out.Bytes(3, spec.tenant);
  out.Uint(4, spec.num_ranks);
  out.Uint(5, spec.num_experts);
  out.Packed(6, spec.expert_owner);
  out.Uint(7, spec.max_tokens_per_rank);
  out.Uint(8, spec.recv_capacity_per_rank);
  out.Uint(9, spec.hidden);
  out.Uint(10, spec.top_k);
  out.Int(11, spec.max_token_dtype);
  out.Bool(12, spec.drop_on_overflow);
  out.Int(13, static_cast<int32_t>(spec.executor));
  out.Bytes(14, spec.backend);
  WireWriter deadlines;
  WriteDuration(deadlines, 1, spec.deadlines.warn_after_ns);
  WriteDuration(deadlines, 2, spec.deadlines.absent_ns);
  WriteDuration(deadlines, 3, spec.deadlines.undecided_ns);
  WriteDuration(deadlines, 4, spec.deadlines.form_ns);
  out.Bytes(15, deadlines.str());
  return out.str();
}

std::string EncodeClientMessage(const ClientMessage& message) {
  WireWriter out;
  // The oneof's field numbers are the alternatives' positions.
  const auto field = static_cast<uint32_t>(message.index() + 1);
  std::visit([&](const auto& body) { out.Nested(field, Encode(body)); }, message);
  return out.str();
}

Status DecodeServerMessage(std::string_view bytes, ServerMessage* message) {
  *message = UnknownMessage();
  WireReader in(bytes);
  while (in.Next()) {
    switch (in.field()) {
      case 1:
        ReadBody<Attached>(in, message);
        break;
      case 2:
        ReadBody<Joined>(in, message);
        break;
      case 3:
        ReadBody<JoinFailed>(in, message);
        break;
      case 4:
        ReadBody<Left>(in, message);
        break;
      case 5:
        ReadBody<Reform>(in, message);
        break;
      case 6:
        ReadBody<GroupEnded>(in, message);
        break;
      case 7:
        ReadBody<Goodbye>(in, message);
        break;
    }
  }
  if (in.ok()) return {};
  return MakeStatus(Code::kDataLoss,
                    "the daemon sent %zu bytes that are not a message of the attach "
                    "protocol; is something else listening on this socket?",
                    bytes.size());
}

}  // namespace epd::client
