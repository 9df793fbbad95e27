// nanopb walks the messages and their numbers and booleans. What has no fixed size it hands to EpdAttachField below,
// which finds the member's C++ type and calls the Write or Read of that type.
#include <pb_decode.h>
#include <pb_encode.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "client/c/attach_messages.h"

namespace epd::client {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
// More entries than any group has: a short message must not become much memory.
constexpr size_t kMaxEntries = limits::kExperts;

template <typename Message>
const pb_msgdesc_t* FieldsOf() {
  return nanopb::MessageDescriptor<Message>::fields();
}

// ---- writing; fields with the default value are left out, as proto3 does ----

// Of a stream whose state is a std::string.
bool Append(pb_ostream_t* out, const pb_byte_t* bytes, size_t size) {
  static_cast<std::string*>(out->state)->append(reinterpret_cast<const char*>(bytes), size);
  return true;
}

pb_ostream_t StreamTo(std::string* bytes) { return {&Append, bytes, SIZE_MAX, 0, nullptr}; }

template <typename Message>
std::string Encode(const Message& message) {
  std::string bytes;
  pb_ostream_t out = StreamTo(&bytes);
  pb_encode(&out, FieldsOf<Message>(), &message);  // Cannot fail: the string grows.
  return bytes;
}

const std::string& Encode(const std::string& text) { return text; }

// Present when empty too: an entry of a repeated field, or the body of a message.
bool WriteEntry(pb_ostream_t* out, uint32_t tag, const std::string& bytes) {
  return pb_encode_tag(out, PB_WT_STRING, tag) &&
         pb_encode_string(out, reinterpret_cast<const pb_byte_t*>(bytes.data()), bytes.size());
}

bool Write(pb_ostream_t* out, uint32_t tag, const std::string& text) {
  return text.empty() || WriteEntry(out, tag, text);
}

bool Write(pb_ostream_t* out, uint32_t tag, const std::vector<uint32_t>& values) {
  std::string packed;
  pb_ostream_t stream = StreamTo(&packed);
  for (const uint32_t value : values) pb_encode_varint(&stream, value);
  return Write(out, tag, packed);
}

bool Write(pb_ostream_t* out, uint32_t tag, Duration ns) {
  if (ns == 0) return true;
  return WriteEntry(out, tag,
                    Encode(google_protobuf_Duration{ns / kNanosPerSecond,
                                                    static_cast<int32_t>(ns % kNanosPerSecond)}));
}

bool Write(pb_ostream_t* out, uint32_t tag, const Status& status) {
  return Write(
      out, tag,
      Encode(epd_v1_Status{static_cast<int32_t>(status.code), status.message, status.resumable}));
}

template <typename Enum>
requires std::is_enum_v<Enum>
bool Write(pb_ostream_t* out, uint32_t tag, const Enum& value) {
  const auto number = static_cast<uint64_t>(value);
  return number == 0 || (pb_encode_tag(out, PB_WT_VARINT, tag) && pb_encode_varint(out, number));
}

template <typename Message>
bool Write(pb_ostream_t* out, uint32_t tag, const Message& message) {
  return Write(out, tag, Encode(message));
}

template <typename Entry>
bool Write(pb_ostream_t* out, uint32_t tag, const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (!WriteEntry(out, tag, Encode(entry))) return false;
  }
  return true;
}

// ---- reading ----

// Of the stream of a whole message: all input passes here, so a sanitizer sees every byte that is read. nanopb has
// checked `size` against what is left.
bool Take(pb_istream_t* in, pb_byte_t* bytes, size_t size) {
  const auto* const from = static_cast<const char*>(in->state);
  std::memcpy(bytes, from, size);
  in->state = const_cast<char*>(from + size);
  return true;
}

// Whether a field came with a length, as texts and messages must: nanopb copies the others into a stream of its own.
bool HasLength(const pb_istream_t* in) { return in->callback == &Take; }

bool Read(pb_istream_t* in, std::string* text) {
  text->resize(in->bytes_left);
  return HasLength(in) && pb_read(in, reinterpret_cast<pb_byte_t*>(text->data()), text->size());
}

template <typename Enum>
requires std::is_enum_v<Enum>
bool Read(pb_istream_t* in, Enum* value) {
  uint64_t number = 0;
  if (HasLength(in) || !pb_decode_varint(in, &number) || in->bytes_left > 0) return false;
  *value = static_cast<Enum>(number);
  return true;
}

// What comes twice is merged, as protobuf does.
template <typename Message>
bool Read(pb_istream_t* in, Message* message) {
  return HasLength(in) && pb_decode_ex(in, FieldsOf<Message>(), message, PB_DECODE_NOINIT);
}

// Saturates: a hostile duration must not overflow.
bool Read(pb_istream_t* in, Duration* ns) {
  google_protobuf_Duration duration{};
  if (!Read(in, &duration)) return false;
  if (__builtin_mul_overflow(duration.seconds, kNanosPerSecond, ns) ||
      __builtin_add_overflow(*ns, duration.nanos, ns)) {
    *ns = duration.seconds < 0 ? INT64_MIN : INT64_MAX;
  }
  return true;
}

bool Read(pb_istream_t* in, Status* status) {
  epd_v1_Status read{static_cast<int32_t>(status->code), std::move(status->message),
                     status->resumable};
  if (!Read(in, &read)) return false;
  *status = {CodeFromNumber(read.code), std::move(read.message), read.resumable};
  return true;
}

// Packed, as proto3 writes numbers.
bool Read(pb_istream_t* in, std::vector<uint32_t>* values) {
  if (!HasLength(in)) return false;
  while (in->bytes_left > 0) {
    uint64_t value = 0;
    if (values->size() == kMaxEntries || !pb_decode_varint(in, &value)) return false;
    values->push_back(static_cast<uint32_t>(value));
  }
  return true;
}

template <typename Entry>
bool Read(pb_istream_t* in, std::vector<Entry>* entries) {
  return entries->size() < kMaxEntries && Read(in, &entries->emplace_back());
}

// ---- from a field to its member ----

// Calls `call` with the member if its size is that of a T: attach.options said another type otherwise.
template <typename T, typename Call>
bool As(const pb_field_t* field, const Call& call) {
  return field->data_size == sizeof(T) && call(static_cast<T*>(field->pData));
}

// The member's type follows from the field's place if its message has one type only, else from the field's own type.
template <typename Call>
bool WithMember(const pb_field_t* field, const Call& call) {
  const bool repeated = PB_HTYPE(field->type) == PB_HTYPE_REPEATED;
  const pb_msgdesc_t* const message = field->submsg_desc;
  switch (PB_LTYPE(field->type)) {
    case PB_LTYPE_STRING:
    case PB_LTYPE_BYTES:
      return repeated ? As<std::vector<std::string>>(field, call) : As<std::string>(field, call);
    case PB_LTYPE_UVARINT:
      if (repeated) return As<std::vector<uint32_t>>(field, call);
      return field->descriptor == FieldsOf<GroupSpec>() ? As<Executor>(field, call)
                                                        : As<ArenaSharing>(field, call);
  }
  if (message == FieldsOf<google_protobuf_Duration>()) return As<Duration>(field, call);
  if (message == FieldsOf<epd_v1_Status>()) return As<Status>(field, call);
  if (message == FieldsOf<Deadlines>()) return As<Deadlines>(field, call);
  if (message == FieldsOf<GroupSpec>()) return As<GroupSpec>(field, call);
  if (message == FieldsOf<DrainedCount>()) return As<std::vector<DrainedCount>>(field, call);
  if (message == FieldsOf<JoinedArena>()) return As<std::vector<JoinedArena>>(field, call);
  if (message == FieldsOf<JoinedMember>()) return As<std::vector<JoinedMember>>(field, call);
  if (message == FieldsOf<JoinedSlots>()) return As<std::vector<JoinedSlots>>(field, call);
  return false;
}

template <size_t kIndex>
bool ReadBody(pb_istream_t* in, ServerMessage* message) {
  if (message->index() != kIndex) message->emplace<kIndex>();
  return Read(in, &std::get<kIndex>(*message));
}

// By the number in the oneof, which is the alternative's index.
constexpr std::array kBodies = {&ReadBody<1>, &ReadBody<2>, &ReadBody<3>, &ReadBody<4>,
                                &ReadBody<5>, &ReadBody<6>, &ReadBody<7>, &ReadBody<8>};
static_assert(kBodies.size() + 1 == std::variant_size_v<ServerMessage>);

bool ReadBodies(pb_istream_t* in, ServerMessage* message) {
  while (in->bytes_left > 0) {
    pb_wire_type_t type = PB_WT_VARINT;
    uint32_t tag = 0;
    bool end = false;
    if (!pb_decode_tag(in, &type, &tag, &end) || tag == 0) return false;
    if (tag > kBodies.size()) {
      if (!pb_skip_field(in, type)) return false;
      continue;
    }
    pb_istream_t body;
    if (type != PB_WT_STRING || !pb_make_string_substream(in, &body) ||
        !kBodies[tag - 1](&body, message) || !pb_close_string_substream(in, &body)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string EncodeGroupSpec(const GroupSpec& spec) { return Encode(spec); }

std::string EncodeClientMessage(const ClientMessage& message) {
  std::string bytes;
  pb_ostream_t out = StreamTo(&bytes);
  // The oneof's field numbers are the alternatives' positions.
  const auto tag = static_cast<uint32_t>(message.index() + 1);
  std::visit([&](const auto& body) { WriteEntry(&out, tag, Encode(body)); }, message);
  return bytes;
}

Status DecodeServerMessage(std::string_view bytes, ServerMessage* message) {
  *message = UnknownMessage();
  pb_istream_t in = {&Take, const_cast<char*>(bytes.data()), bytes.size(), nullptr};
  if (ReadBodies(&in, message)) return {};
  return MakeStatus(Code::kDataLoss,
                    "the daemon sent %zu bytes that are not a message of the attach "
                    "protocol; is something else listening on this socket?",
                    bytes.size());
}

// Named in attach.options: nanopb calls it with one of the streams for each member that is not a plain number or boolean.
extern "C" bool EpdAttachField(pb_istream_t* in, pb_ostream_t* out, const pb_field_t* field) {
  return WithMember(field, [&](auto* member) {
    return in != nullptr ? Read(in, member) : Write(out, field->tag, *member);
  });
}

}  // namespace epd::client
