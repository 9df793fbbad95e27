// What a worker's program does once its backend is chosen: serve one epd until it is gone.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/backend/backend.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

using MakeBackend =
    std::function<absl::StatusOr<std::unique_ptr<Backend>>(const v1::WorkerHello& hello)>;

// Where this program's own file lies.
std::string SelfPath();

// Serves the epd at the other end of `argument` ("--control-fd=N"), on the calling thread; handles
// signals. Returns the exit status, after an error has been printed.
int WorkerMain(absl::string_view argument, const MakeBackend& make_backend);

}  // namespace epd
