#include "client/program/program_call.h"

#include <utility>

namespace epd::program {
namespace {

int Refuse(const ActiveCall& call, epd_error* error) {
  epd_refuse_args args = {};
  args.struct_size = sizeof args;
  args.rank = call.rank();
  args.key = call.key();
  args.code = static_cast<std::int32_t>(call.refusal().code);
  args.text = call.refusal().message.c_str();
  return epd_refuse(call.group(), &args, error);
}

}  // namespace

bool ProgramCall::GoOn(std::int64_t wait_ns) {
  const bool may_wait = wait_ns < 0;
  for (;;) {
    if (!active_) {
      status_ = groups_.Begin(next_, may_wait, &active_);
      if (!status_.ok()) return true;
      if (!active_) return false;
    }
    if (!made_ && !Make(wait_ns)) return false;
    // After a failure the end waits to hear why.
    if (!may_wait && !made_->ok()) return false;
    // Repeated, it is still the same use of its call site.
    if (next_.name == nullptr) next_.occurrence = active_->number().occurrence + 1;
    const bool again = active_->End(*made_);
    active_.reset();
    status_ = *std::exchange(made_, std::nullopt);
    if (!again) return true;
  }
}

bool ProgramCall::Make(std::int64_t wait_ns) {
  epd_error error = {};
  error.struct_size = sizeof error;
  const bool may_wait = wait_ns < 0;
  int code = EPD_PENDING;
  if (pending_ != nullptr) {
    if (may_wait) code = epd_finish(std::exchange(pending_, nullptr), &error);
  } else if (active_->refusal().ok()) {
    code = exchange_(*active_, wait_ns, &pending_, &error);
  } else if (may_wait) {
    code = Refuse(*active_, &error);
  }
  if (code == EPD_PENDING) return false;
  made_ = FromError(code, error);
  return true;
}

}  // namespace epd::program
