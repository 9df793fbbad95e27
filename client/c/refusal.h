// An operation that this rank cannot make, announced with its error alone.
#pragma once

#include <utility>

#include "client/c/epd_client.h"
#include "client/c/operation.h"

namespace epd::client {

class Refusal : public Operation {
 public:
  explicit Refusal(const epd_refuse_args& args) {
    if (args.code == EPD_OK) {
      error_ = MakeStatus(Code::kInvalidArgument, "epd_refuse: code must not be EPD_OK");
    } else {
      error_ = {CodeFromNumber(static_cast<uint32_t>(args.code)),
                args.text == nullptr ? "the rank gave no reason" : args.text};
    }
  }

  Status Plan(const Formation&, shm::SlotRequest*) override { return error_; }
  // Never reached: what is announced with an error is not admitted.
  Status Stage(const Admitted&) override { return error_; }
  Status Pull(const Admitted&) override { return error_; }
  Status TakeOutput(const Admitted&, const std::byte*) override { return error_; }
  void ZeroOutputs() override {}

 private:
  Status error_;
};

}  // namespace epd::client
