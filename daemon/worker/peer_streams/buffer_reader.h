// Reads a gRPC buffer that lies in several slices, without copying it as a whole.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace epd {

class BufferReader {
 public:
  explicit BufferReader(const grpc::ByteBuffer& buffer) {
    auto slices = std::make_shared<std::vector<grpc::Slice>>();
    if (!buffer.Valid() || !buffer.Dump(slices.get()).ok()) slices->clear();
    for (const grpc::Slice& slice : *slices) {
      if (slice.size() > 0) {
        parts_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    slices_ = std::move(slices);
  }

  // False: fewer than `bytes` are left.
  bool Read(void* to, size_t bytes) {
    auto* out = static_cast<char*>(to);
    while (bytes > 0 && first_ < parts_.size()) {
      auto& [from, size] = parts_[first_];
      const size_t now = std::min(bytes, size);
      std::memcpy(out, from, now);
      out += now;
      bytes -= now;
      from += now;
      size -= now;
      if (size == 0) ++first_;
    }
    return bytes == 0;
  }

  // Of the next `bytes` alone, which this one then leaves out. Nothing: fewer are left.
  std::optional<BufferReader> Split(size_t bytes) {
    BufferReader split(slices_);
    while (bytes > 0 && first_ < parts_.size()) {
      auto& [from, size] = parts_[first_];
      const size_t now = std::min(bytes, size);
      split.parts_.emplace_back(from, now);
      bytes -= now;
      from += now;
      size -= now;
      if (size == 0) ++first_;
    }
    if (bytes > 0) return std::nullopt;
    return split;
  }

  // Bytes that have not been read.
  size_t left() const {
    size_t bytes = 0;
    for (size_t i = first_; i < parts_.size(); ++i) bytes += parts_[i].second;
    return bytes;
  }

  // What the parts lie in.
  const std::shared_ptr<const std::vector<grpc::Slice>>& slices() const { return slices_; }

  template <typename T>
  std::optional<T> Peek() const {
    BufferReader copy = *this;
    T value;
    if (!copy.Read(&value, sizeof value)) return std::nullopt;
    return value;
  }

  // What has not been read.
  std::vector<std::pair<const char*, size_t>> Parts() const {
    return {parts_.begin() + static_cast<ptrdiff_t>(first_), parts_.end()};
  }

  // What has not been read, without its first `skip` bytes.
  std::string Rest(size_t skip) const {
    std::string all;
    for (const auto& [from, size] : Parts()) all.append(from, size);
    return all.size() < skip ? "" : all.substr(skip);
  }

 private:
  explicit BufferReader(std::shared_ptr<const std::vector<grpc::Slice>> slices)
      : slices_(std::move(slices)) {}

  std::shared_ptr<const std::vector<grpc::Slice>> slices_;
  std::vector<std::pair<const char*, size_t>> parts_;
  size_t first_ = 0;
};

}  // namespace epd
