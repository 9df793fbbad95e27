// What a worker's program does once its backend is chosen: serve one epd until it is gone.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/backend/backend.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// What a worker serves groups with.
struct ServedBackends {
  Backends backends;                            // At least one; "auto" means the first.
  std::optional<v1::WorkerReady::Device> cuda;  // Of backend "cuda", if it is one of them.
  std::string no_cuda = {};                     // Else why.
};

using MakeBackends = std::function<absl::StatusOr<ServedBackends>(const v1::WorkerHello& hello)>;

// Where this program's own file lies.
std::string SelfPath();

// Serves the epd at the other end of `argument` ("--control-fd=N"), on the calling thread; handles
// signals. Returns the exit status, after an error has been printed.
int WorkerMain(absl::string_view argument, const MakeBackends& make_backends);

}  // namespace epd
