#include "client/program/first_joins.h"

#include <chrono>
#include <utility>

#include "client/c/interrupt.h"

namespace epd::program {

FirstJoins::Scope::Scope(FirstJoins& all, std::string alias) : all_(all), alias_(std::move(alias)) {
  const client::MutexLock lock(all_.mutex_);
  all_.aliases_.insert(alias_);
}

FirstJoins::Scope::~Scope() {
  const client::MutexLock lock(all_.mutex_);
  all_.aliases_.erase(all_.aliases_.find(alias_));
  all_.changed_.NotifyAll();
}

bool FirstJoins::Has(std::string_view alias) const {
  const client::MutexLock lock(mutex_);
  return aliases_.contains(alias);
}

Status FirstJoins::Await(std::string_view alias) {
  const client::Interrupts interrupts;
  const client::MutexLock lock(mutex_);
  while (aliases_.contains(alias)) {
    if (interrupts.any()) {
      return {client::Code::kCancelled, "[epd:CANCELLED] group=" + std::string(alias) +
                                            " phase=join: interrupted while another thread joins"};
    }
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + client::kInterruptLook);
  }
  return {};
}

}  // namespace epd::program
