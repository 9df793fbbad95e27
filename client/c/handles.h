// What stands behind the handles of the C interface.
#pragma once

#include <memory>

#include "client/c/epd_client.h"
#include "client/c/session.h"

struct epd_client {
  std::shared_ptr<epd::client::Session> session;
};

struct epd_group {
  std::shared_ptr<epd::client::Session> session;
  std::shared_ptr<epd::client::Group> group;
};
