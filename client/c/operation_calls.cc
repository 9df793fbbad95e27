#include "client/c/operation_calls.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "client/c/digest.h"
#include "client/c/handles.h"
#include "client/c/prepare_operation.h"
#include "client/c/rows_operation.h"
#include "client/c/slices_operation.h"
#include "client/c/struct_size.h"

namespace epd::client {
namespace {

// An operation that this rank cannot make, announced with its error alone.
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

constexpr size_t kScopeBytes = 31;  // As many as a record of a direct call has.

bool HasProgram(const epd_key& key) {
  return std::any_of(std::begin(key.program), std::end(key.program),
                     [](uint8_t byte) { return byte != 0; });
}

Status ReadKey(const epd_key& key, CallKey* out) {
  const bool has_text = key.name != nullptr && *key.name != '\0';
  if (has_text && !HasProgram(key)) {
    out->name = key.name;
    out->program = DigestOf(out->name);
  } else {
    const std::string_view text = has_text ? key.name : "";
    out->scope = text.substr(text.size() - std::min(text.size(), kScopeBytes));
    std::copy(std::begin(key.program), std::end(key.program), out->program.begin());
    out->ordinal = key.ordinal;
    out->occurrence = key.occurrence;
    if (key.execution == EPD_EXECUTION_NEXT) {
      return MakeStatus(
          Code::kInvalidArgument,
          "a key without a name needs the number that epd_begin_execution gave for its execution");
    }
  }
  if (key.execution != EPD_EXECUTION_NEXT) out->execution = key.execution;
  return {};
}

// An operation with the arguments that it borrows.
template <typename Args>
struct OwnArguments {
  Args args;
};
template <typename Args, typename Base>
class OwnOperation final : private OwnArguments<Args>, public Base {
 public:
  template <typename... Kind>
  explicit OwnOperation(const Args& args, Kind... kind)
      : OwnArguments<Args>{args}, Base(kind..., OwnArguments<Args>::args) {}
};

template <typename Base, typename Args, typename... Kind>
Status Make(epd_group* group, const Args* given, std::unique_ptr<OperationRun>* run, Kind... kind) {
  if (group == nullptr) return MakeStatus(Code::kInvalidArgument, "group must not be NULL");
  Args args;
  if (Status s = ReadStruct(given, "args", &args); !s.ok()) return s;
  auto operation = std::make_unique<OwnOperation<Args, Base>>(args, kind...);
  CallKey key;
  if (Status s = ReadKey(args.key, &key); !s.ok()) {
    operation->ZeroOutputs();
    return s;
  }
  *run = std::make_unique<OperationRun>(group->session, group->group, args.rank, std::move(key),
                                        std::move(operation));
  return {};
}

}  // namespace

Status MakeRun(epd_group* group, epd_operation operation, const void* args,
               std::unique_ptr<OperationRun>* run) {
  const auto* scatter = static_cast<const epd_scatter_args*>(args);
  const auto* gather = static_cast<const epd_gather_args*>(args);
  switch (operation) {
    case EPD_OPERATION_PREPARE:
      return Make<PrepareOperation>(group, static_cast<const epd_prepare_args*>(args), run);
    case EPD_OPERATION_DISPATCH:
      return Make<ScatterOperation>(group, scatter, run, shm::Kind::kDispatch);
    case EPD_OPERATION_COMBINE_BACKWARD:
      return Make<ScatterOperation>(group, scatter, run, shm::Kind::kCombineBackward);
    case EPD_OPERATION_COMBINE:
      return Make<GatherOperation>(group, gather, run, shm::Kind::kCombine);
    case EPD_OPERATION_DISPATCH_BACKWARD:
      return Make<GatherOperation>(group, gather, run, shm::Kind::kDispatchBackward);
    case EPD_OPERATION_RAGGED_ALL_TO_ALL:
      return Make<SlicesOperation>(group, static_cast<const epd_ragged_args*>(args), run);
  }
  return MakeStatus(Code::kInvalidArgument, "operation: %d is no epd_operation",
                    static_cast<int>(operation));
}

Status MakeRefusal(epd_group* group, const epd_refuse_args* args,
                   std::unique_ptr<OperationRun>* run) {
  return Make<Refusal>(group, args, run);
}

}  // namespace epd::client
