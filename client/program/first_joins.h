// Which aliases are being joined for the first time: what looks and waits meanwhile knows of no group yet.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "client/c/mutex.h"
#include "client/c/status.h"

namespace epd::program {

using client::Status;

// Thread-safe.
class FirstJoins {
 public:
  // As long as the join goes on.
  class Scope {
   public:
    Scope(FirstJoins& all, std::string alias);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    FirstJoins& all_;
    const std::string alias_;
  };

  bool Has(std::string_view alias) const;
  // Waits until there is none of the alias. Each has a deadline of its own, the forming deadline.
  //   CANCELLED  Ctrl-C
  Status Await(std::string_view alias);

 private:
  mutable client::Mutex mutex_;
  client::CondVar changed_;
  std::multiset<std::string, std::less<>> aliases_ EPD_GUARDED_BY(mutex_);
};

}  // namespace epd::program
