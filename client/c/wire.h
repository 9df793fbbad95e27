// The protobuf wire format, as much of it as the attach socket needs: no descriptors, no allocation
// while reading.
//
// The library must not carry libprotobuf (size, and a second copy in the caller's process), so it
// speaks the format itself; tests/unit/client/c/attach_codec_test.cc holds it to the real library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace epd::client {

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Appends fields to a message. Fields with the default value are left out, as proto3 does.
class WireWriter {
 public:
  void Uint(uint32_t field, uint64_t value);
  void Int(uint32_t field, int64_t value) { Uint(field, static_cast<uint64_t>(value)); }
  void Bool(uint32_t field, bool value) { Uint(field, value ? 1 : 0); }
  void Bytes(uint32_t field, std::string_view value);
  // Like Bytes, but present when empty too: a message or an entry of a repeated field.
  void Nested(uint32_t field, std::string_view value);
  // A packed repeated field.
  template <typename Values>
  void Packed(uint32_t field, const Values& values) {
    WireWriter packed;
    for (const auto value : values) packed.Varint(value);
    Bytes(field, packed.out_);
  }

  const std::string& str() const { return out_; }

 private:
  void Tag(uint32_t field, WireType type) {
    Varint(uint64_t{field} << 3 | static_cast<uint64_t>(type));
  }
  void Varint(uint64_t value);

  std::string out_;
};

// Walks the fields of a message that somebody else wrote. Every read is bounds-checked; the first
// malformed byte ends the walk and ok() turns false. Views point into the input.
class WireReader {
 public:
  explicit WireReader(std::string_view data) : rest_(data) {}

  // Moves to the next field. False at the end or at malformed input.
  bool Next();

  uint32_t field() const { return field_; }
  WireType type() const { return type_; }
  bool ok() const { return ok_; }

  // The current field's value; of another wire type than asked: 0 or empty, and ok() turns false.
  uint64_t Uint();
  std::string_view Bytes();

  // Calls `add(uint64_t)` for each value of a repeated field, packed or not.
  template <typename Add>
  void Repeated(Add add) {
    if (type_ == WireType::kVarint) return add(value_);
    WireReader packed(Bytes());
    while (ok_ && !packed.rest_.empty()) {
      uint64_t value = 0;
      if (!packed.TakeVarint(&value)) return Fail();
      add(value);
    }
  }

  // Marks the message malformed.
  void Fail() { ok_ = false; }

 private:
  bool TakeVarint(uint64_t* value);
  bool TakeFixed(size_t bytes);

  std::string_view rest_;
  std::string_view bytes_;
  uint64_t value_ = 0;
  uint32_t field_ = 0;
  WireType type_ = WireType::kVarint;
  bool ok_ = true;
};

}  // namespace epd::client
