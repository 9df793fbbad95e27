#include "daemon/store/election.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace epd {

namespace {

// Codes of the same state.
absl::StatusCode KindOf(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) ? absl::StatusCode::kUnavailable : status.code();
}

}  // namespace

void Election::Note(StoreCall call, const absl::Status& status, Actions& actions) {
  failing_[call] = status;
  const auto fails = [](const auto& one) { return !one.second.ok(); };
  // What is said already stays so, as long as any call fails in that way.
  const auto said = absl::c_find_if(failing_, [&](const auto& one) {
    return fails(one) && KindOf(one.second) == KindOf(problem_);
  });
  if (said != failing_.end()) return;
  const auto first = absl::c_find_if(failing_, fails);
  const absl::Status now = first == failing_.end() ? absl::OkStatus() : first->second;
  if (now.ok() && problem_.ok()) return;
  problem_ = now;
  actions.emplace_back(StoreProblem{now});
}

void Election::StepDown(const std::string& why, Actions& actions) {
  if (!std::exchange(leading_, false)) return;
  Note(StoreCall::kKeep, absl::OkStatus(), actions);
  actions.emplace_back(NoLeader{absl::UnavailableError(
      absl::StrCat("node ", options_.node, " no longer coordinates: ", why))});
  told_ = true;
}

void Election::TryToLead(absl::Time now, int64_t expected, Actions& actions) {
  if (!options_.can_lead || campaigning_ || leading_ || !HoldsLease(now)) return;
  if (now < may_campaign_) return;
  campaigning_ = true;
  actions.emplace_back(Campaign{expected, ceiling_});
}

Election::Actions Election::OnLease(absl::Time now, absl::Time asked) {
  Actions actions;
  Note(StoreCall::kLease, absl::OkStatus(), actions);
  lease_until_ = std::max(lease_until_, asked + options_.lease - options_.margin);
  if (!key_.has_value() && store_revision_ != 0) TryToLead(now, 0, actions);
  return actions;
}

Election::Actions Election::OnLeaseLost(absl::Time) {
  Actions actions;
  lease_until_ = absl::InfinitePast();
  StepDown("its lease has expired", actions);
  return actions;
}

Election::Actions Election::OnKey(absl::Time now, const std::optional<Leadership>& key,
                                  int64_t revision, uint64_t ceiling) {
  Actions actions;
  const bool lost_data = revision < store_revision_;
  Note(StoreCall::kRead,
       lost_data ? absl::DataLossError(absl::StrCat("etcd has lost its data: its revision was ",
                                                    store_revision_, " and is ", revision,
                                                    "; epochs go on above ", ceiling_))
                 : absl::OkStatus(),
       actions);
  if (lost_data) {
    StepDown("etcd has lost its data", actions);
    key_.reset();
    told_ = false;
  }
  store_revision_ = revision;
  ceiling_ = std::max(ceiling_, ceiling);
  const bool changed = key != key_;
  key_ = key;
  const bool mine = key.has_value() && key->incarnation == options_.incarnation;
  if (leading_ && !mine) {
    StepDown(key.has_value() ? absl::StrCat("node ", key->node, " has taken over")
                             : "its key is gone from the store",
             actions);
    told_ = false;
  }
  if (mine) {  // Won, but the answer was lost, or this node has stepped down since: once more.
    if (!leading_) TryToLead(now, key->revision, actions);
    return actions;
  }
  if (key.has_value()) {
    // There is no need for a campaign: somebody new leads, or nobody was refused by the old one for long.
    if (changed || now > may_campaign_ + 2 * options_.campaigns.max)
      Note(StoreCall::kCampaign, absl::OkStatus(), actions);
    if (changed || !told_) actions.emplace_back(Follow{*key});
    told_ = true;
    return actions;
  }
  if ((changed || !told_) && !leading_) {
    actions.emplace_back(NoLeader{absl::UnavailableError("the cluster has no coordinator yet")});
    told_ = true;
  }
  TryToLead(now, 0, actions);
  return actions;
}

Election::Actions Election::OnWon(absl::Time now, int64_t revision, const EpochBlock& block) {
  Actions actions;
  campaigning_ = false;
  campaigns_.Reset();
  Note(StoreCall::kCampaign, absl::OkStatus(), actions);
  ceiling_ = std::max(ceiling_, block.ceiling);
  if (!HoldsLease(now)) return actions;  // The key expires with the lease.
  if (key_.has_value() && key_->revision > revision) return actions;  // Replaced meanwhile.
  key_ = Leadership{options_.node, "", options_.incarnation, revision};
  store_revision_ = std::max(store_revision_, revision);
  leading_ = true;
  told_ = false;
  actions.emplace_back(Lead{revision, block});
  return actions;
}

Election::Actions Election::OnLost(absl::Time) {
  Actions actions;
  campaigning_ = false;
  Note(StoreCall::kCampaign, absl::OkStatus(), actions);
  return actions;
}

Election::Actions Election::OnStoreDone(absl::Time, StoreCall call) {
  Actions actions;
  Note(call, absl::OkStatus(), actions);
  return actions;
}

Election::Actions Election::OnStoreError(absl::Time now, StoreCall call,
                                         const absl::Status& error) {
  Actions actions;
  campaigning_ = false;
  if (call == StoreCall::kCampaign) may_campaign_ = now + campaigns_.AfterFailure();
  Note(call, error, actions);
  return actions;
}

Election::Actions Election::OnRefused(absl::Time now, const Leadership& leader) {
  Actions actions;
  if (key_.has_value() && *key_ == leader) TryToLead(now, leader.revision, actions);
  return actions;
}

Election::Actions Election::OnTick(absl::Time now) {
  Actions actions;
  if (leading_ && !HoldsLease(now)) StepDown("its lease was not renewed in time", actions);
  return actions;
}

absl::Time Election::NextDeadline() const {
  return leading_ ? lease_until_ : absl::InfiniteFuture();
}

}  // namespace epd
