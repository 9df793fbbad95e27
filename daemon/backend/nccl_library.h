// NCCL, found and opened at run time: what is installed decides, never the build.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace epd {

inline constexpr size_t kNcclUniqueIdBytes = 128;

// Where to look for libnccl.so.2, in order: `explicit_path` alone if it is given; else the loader's
// own places, CUDA toolkits, and the Python environment that the binary at `self` is installed in
// (wheel_files.h): its lib, and nvidia/nccl/lib of its packages.
std::vector<std::string> NcclCandidates(const std::string& explicit_path, const std::string& self);

// An opened library, or the reason why there is none. Immutable after construction; any thread.
class NcclLibrary {
 public:
  // Tries the candidates in order and takes the first that opens. Loading it starts no thread and
  // needs no GPU.
  explicit NcclLibrary(const std::vector<std::string>& candidates);
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  const std::string& version() const { return version_; }  // "2.27.3"; empty: none.
  const std::string& path() const { return path_; }        // Of the file that was opened.
  const std::string& problem() const {
    return problem_;
  }  // Why there is none; empty: there is one.

  // Makes a unique id: 128 bytes that must never be logged. Opens a listening socket that lives as
  // long as the process. May block on the network's set-up; needs no GPU.
  //   UNAVAILABLE  no library, or NCCL's own error
  absl::StatusOr<std::string> MakeUniqueId() const;

 private:
  struct UniqueIdBytes {
    char internal[kNcclUniqueIdBytes];
  };
  using GetVersion = int (*)(int*);
  using GetUniqueId = int (*)(UniqueIdBytes*);
  using GetLastError = const char* (*)(void*);

  // True when `path` is an NCCL that works; else `problem_` grows.
  bool Open(const std::string& path);
  void Complain(const std::string& path, const std::string& why);

  // Never closed: NCCL keeps threads that run its code.
  void* handle_ = nullptr;
  GetUniqueId get_unique_id_ = nullptr;
  GetLastError get_last_error_ = nullptr;
  std::string version_;
  std::string path_;
  std::string problem_;
};

}  // namespace epd
