// Whose memory keeps a worker from answering. Pure.
//
// A worker touches memory that its users share. One of them who makes a hole in his own, the more slowly the better, keeps the
// worker waiting in the kernel for as long, and with it all users. Nothing can end that wait, but who it is can be seen: the
// worker says whose memory it touches (RecordsHeader::touched), and the kernel that it waits.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace epd {

class HoldUp {
 public:
  // What a look at the worker's process has found.
  struct Look {
    bool waits_in_kernel = false;  // In an uninterruptible sleep, "D" in /proc/PID/stat.
    uint64_t touched = 0;          // RecordsHeader::touched.
  };
  // An answer is overdue for so long before the first look.
  static constexpr absl::Duration kFirst = absl::Milliseconds(500);
  static constexpr absl::Duration kEvery = absl::Milliseconds(200);
  // In a row that have found the same. A page that comes back from swap is there before the next one.
  static constexpr int kLooks = 6;

  // The worker has answered, or ended.
  void Reset() { *this = HoldUp(); }
  void Add(const Look& look, absl::Time now);
  // When the next look is due at a worker that has owed an answer since `asked_at`; never once it is known who it is.
  absl::Time NextLook(absl::Time asked_at) const;
  // The uid, once it is known.
  const std::optional<uint32_t>& uid() const { return uid_; }

 private:
  uint64_t touched_ = 0;  // In the last num_ looks.
  int num_ = 0;
  absl::Time looked_at_ = absl::InfinitePast();
  std::optional<uint32_t> uid_;
};

}  // namespace epd
