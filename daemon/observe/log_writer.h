// Carries lines to a descriptor that may take none for a while: a full pipe whose reader is stopped, a disk that hangs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace epd {

// Thread-safe. A thread of its own writes; what others wait for it is bounded. Where that thread cannot be had, a first line says
// so, and each line is written by whoever hands it over.
class LogWriter {
 public:
  // What waits is bounded: further lines are dropped and counted, and once there is room again one line
  // says how many.
  explicit LogWriter(size_t max_waiting_bytes = 1 << 20);
  // The thread ends when it has written what waits; nobody waits for that.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Later lines go to the end of `path`; "": to standard error. A file that is renamed or removed is opened anew
  // with the next line.
  //   INVALID_ARGUMENT  it cannot be opened; lines go where they went before
  absl::Status Use(const std::string& path);

  // Hands over one line, with its end. It is written when this returns, unless the descriptor is stuck: that costs 20 ms
  // once, and nothing until all that waits is written.
  void Write(std::string line);

  // Waits until what was handed over is written, for at most `patience`.
  void Flush(absl::Duration patience);

  // Of the line that says how many were dropped, for tests.
  static std::string DroppedLine(uint64_t count);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // The thread's too.
};

}  // namespace epd
