// Groups that nobody joined beforehand: what an alias means is asked for when a call first names it, and each rank joins at
// its own first call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "client/c/mutex.h"
#include "client/program/domain.h"
#include "client/program/epd_program.h"

namespace epd::program {

// Thread-safe.
class RanksByCall {
 public:
  // See epd_program_describe_with.
  void DescribeWith(std::string prefix, epd_program_describe describe);

  // Asks what the call's alias means. False: nobody knows aliases like it.
  bool Describe(const epd_program_call& call, Status* status) const;

  // The rank alone in its domain, with a session of its own, since a session is in a group once. Joins at its first call.
  std::shared_ptr<Domain> Of(std::shared_ptr<const GroupConfig> config, std::uint32_t domain,
                             std::uint32_t rank);

  // Those of an alias that have made a call.
  std::vector<std::shared_ptr<Domain>> All(std::string_view alias) const;
  void Forget(std::string_view alias);

 private:
  mutable client::Mutex mutex_;
  std::string prefix_ EPD_GUARDED_BY(mutex_);
  epd_program_describe describe_ EPD_GUARDED_BY(mutex_) = nullptr;
  // By alias, domain and rank.
  std::map<std::tuple<std::string, std::uint32_t, std::uint32_t>, std::shared_ptr<Domain>> domains_
      EPD_GUARDED_BY(mutex_);
};

}  // namespace epd::program
