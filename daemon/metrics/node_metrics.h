// A node's figures as text for Prometheus.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// The text format, version 0.0.4: each row of metric_table.h that `figures` has something for. Pure.
std::string MetricsText(const v1::GetFiguresResponse& figures, absl::Duration age);

}  // namespace epd
