// Goal: whatever a daemon of any version sends, the client's own reader of protobuf's format stays inside it, takes what
// protobuf takes, and reads the same from it.
#include <string>
#include <string_view>
#include <variant>

#include "client/c/attach_messages.h"
#include "proto/epd/v1/attach.pb.h"
#include "tests/fuzz/input.h"

namespace epd {
namespace {

template <typename T>
const T* Get(const client::ServerMessage& message) {
  return std::get_if<T>(&message);
}

void Compare(const v1::ServerMessage& theirs, const client::ServerMessage& ours) {
  if (const auto* attached = Get<client::Attached>(ours)) {
    EPD_FUZZ_CHECK(theirs.has_attached());
    EPD_FUZZ_CHECK(attached->session_id == theirs.attached().session_id());
    EPD_FUZZ_CHECK(attached->node == theirs.attached().node());
  } else if (const auto* joined = Get<client::Joined>(ours)) {
    EPD_FUZZ_CHECK(theirs.has_joined());
    EPD_FUZZ_CHECK(joined->members.size() == static_cast<size_t>(theirs.joined().members_size()));
    EPD_FUZZ_CHECK(joined->arenas.size() == static_cast<size_t>(theirs.joined().arenas_size()));
    EPD_FUZZ_CHECK(joined->spec.name == theirs.joined().spec().name());
  } else if (const auto* failed = Get<client::JoinFailed>(ours)) {
    EPD_FUZZ_CHECK(failed->request_id == theirs.join_failed().request_id());
  } else if (const auto* reform = Get<client::Reform>(ours)) {
    EPD_FUZZ_CHECK(reform->formation == theirs.reform().formation());
    EPD_FUZZ_CHECK(reform->wait == theirs.reform().wait());
  }
}

}  // namespace
}  // namespace epd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  epd::client::ServerMessage ours;
  const epd::client::Status status = epd::client::DecodeServerMessage(bytes, &ours);
  epd::v1::ServerMessage theirs;
  // Protobuf refuses more: text that is not UTF-8, a group without an end.
  if (!theirs.ParseFromArray(data, static_cast<int>(size))) return 0;
  if (status.ok()) epd::Compare(theirs, ours);
  return 0;
}
