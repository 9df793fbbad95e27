// What stands behind the handles of epd_stream.h.
#pragma once

#include <memory>

#include "client/cuda/epd_stream.h"
#include "client/cuda/stream_group.h"

struct epd_stream_group {
  std::shared_ptr<epd::client::StreamGroup> group;
};

struct epd_stream_site {
  std::shared_ptr<epd::client::StreamGroup> group;
  std::unique_ptr<epd::client::HeldSite> site;
};
