#include "client/c/wire.h"

namespace epd::client {

void WireWriter::Varint(uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<char>(value));
}

void WireWriter::Uint(uint32_t field, uint64_t value) {
  if (value == 0) return;
  Tag(field, WireType::kVarint);
  Varint(value);
}

void WireWriter::Bytes(uint32_t field, std::string_view value) {
  if (!value.empty()) Nested(field, value);
}

void WireWriter::Nested(uint32_t field, std::string_view value) {
  Tag(field, WireType::kBytes);
  Varint(value.size());
  out_.append(value);
}

bool WireReader::TakeVarint(uint64_t* value) {
  *value = 0;
  for (size_t i = 0; i < 10; ++i) {
    if (i == rest_.size()) return false;
    const auto byte = static_cast<uint8_t>(rest_[i]);
    if (i == 9 && byte > 1) return false;  // More than 64 bits.
    *value |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) {
      rest_.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

bool WireReader::TakeFixed(size_t bytes) {
  if (rest_.size() < bytes) return false;
  value_ = 0;
  for (size_t i = 0; i < bytes; ++i) value_ |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
  rest_.remove_prefix(bytes);
  return true;
}

bool WireReader::Next() {
  if (!ok_ || rest_.empty()) return false;
  uint64_t tag = 0;
  if (!TakeVarint(&tag) || tag >> 32 != 0 || tag >> 3 == 0) return Fail(), false;
  field_ = static_cast<uint32_t>(tag >> 3);
  type_ = static_cast<WireType>(tag & 7);
  bytes_ = {};
  value_ = 0;
  bool taken = false;
  switch (type_) {
    case WireType::kVarint:
      taken = TakeVarint(&value_);
      break;
    case WireType::kFixed64:
      taken = TakeFixed(8);
      break;
    case WireType::kFixed32:
      taken = TakeFixed(4);
      break;
    case WireType::kBytes: {
      uint64_t size = 0;
      taken = TakeVarint(&size) && size <= rest_.size();
      if (taken) {
        bytes_ = rest_.substr(0, size);
        rest_.remove_prefix(size);
      }
      break;
    }
  }
  if (!taken) Fail();
  return taken;
}

uint64_t WireReader::Uint() {
  if (type_ != WireType::kVarint) Fail();
  return type_ == WireType::kVarint ? value_ : 0;
}

std::string_view WireReader::Bytes() {
  if (type_ != WireType::kBytes) Fail();
  return bytes_;
}

}  // namespace epd::client
