#include "client/program/ranks_by_call.h"

#include <iterator>
#include <utility>

namespace epd::program {

void RanksByCall::DescribeWith(std::string prefix, epd_program_describe describe) {
  const client::MutexLock lock(mutex_);
  prefix_ = std::move(prefix);
  describe_ = describe;
}

bool RanksByCall::Describe(const epd_program_call& call, Status* status) const {
  epd_program_describe describe = nullptr;
  {
    const client::MutexLock lock(mutex_);
    const bool known = std::string_view(call.alias).substr(0, prefix_.size()) == prefix_;
    if (known && call.traced != nullptr) describe = describe_;
  }
  if (describe == nullptr) return false;
  epd_error error = {};
  error.struct_size = sizeof error;
  *status = FromError(describe(call.alias, call.traced->ranks, &error), error);
  return true;
}

std::shared_ptr<Domain> RanksByCall::Of(std::shared_ptr<const GroupConfig> config,
                                        std::uint32_t domain, std::uint32_t rank) {
  const client::MutexLock lock(mutex_);
  std::shared_ptr<Domain>& own = domains_[{config->alias, domain, rank}];
  if (own != nullptr) return own;
  auto connect = [endpoint = config->endpoint,
                  last = std::shared_ptr<Session>()](std::shared_ptr<Session>* session) mutable {
    if (last == nullptr || !last->Check().ok()) {
      last = nullptr;  // Disconnects first.
      if (Status status = Session::Connect(endpoint, &last); !status.ok()) return status;
    }
    *session = last;
    return Status{};
  };
  const std::map<std::uint32_t, std::string> ranks = {{rank, config->devices}};
  own = std::make_shared<Domain>(std::move(config), domain, ranks, std::move(connect));
  return own;
}

std::vector<std::shared_ptr<Domain>> RanksByCall::All(std::string_view alias) const {
  std::vector<std::shared_ptr<Domain>> all;
  const client::MutexLock lock(mutex_);
  for (const auto& [key, domain] : domains_) {
    if (std::get<0>(key) == alias) all.push_back(domain);
  }
  return all;
}

void RanksByCall::Forget(std::string_view alias) {
  const client::MutexLock lock(mutex_);
  for (auto one = domains_.begin(); one != domains_.end();) {
    one = std::get<0>(one->first) == alias ? domains_.erase(one) : std::next(one);
  }
}

}  // namespace epd::program
