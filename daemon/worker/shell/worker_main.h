// What a worker's program does once its backend is chosen: serve one epd until it is gone.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/worker/shell/served_backends.h"

namespace epd {

// Where this program's own file lies.
std::string SelfPath();

// Serves the epd at the other end of `argument` ("--control-fd=N"), on the calling thread; handles
// signals. Returns the exit status, after an error has been printed.
int WorkerMain(absl::string_view argument, const MakeBackends& make_backends);

}  // namespace epd
