// An NCCL unique id: whoever knows it can enter the communicator, so nothing may ever print it.
#pragma once

#include <iosfwd>
#include <string>
#include <utility>

namespace epd {

// Opaque bytes (128 of them with NCCL). Has no printed form on purpose: no operator<<, no
// AbslStringify.
class UniqueId {
 public:
  UniqueId() = default;
  explicit UniqueId(std::string bytes) : bytes_(std::move(bytes)) {}

  // For handing the id to a worker or to another node, and for nothing else.
  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }

  friend bool operator==(const UniqueId&, const UniqueId&) = default;
  friend std::ostream& operator<<(std::ostream&, const UniqueId&) = delete;

 private:
  std::string bytes_;
};

}  // namespace epd
