// What a worker serves groups with.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/backend/backend.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

struct ServedBackends {
  Backends backends;                            // At least one; "auto" means the first.
  std::optional<v1::WorkerReady::Device> cuda;  // Of backend "cuda", if it is one of them.
  std::string no_cuda = {};                     // Else why.
};

using MakeBackends = std::function<absl::StatusOr<ServedBackends>(const v1::WorkerHello& hello)>;

}  // namespace epd
