// Replace: another program in epd's process.
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/node_api/node_service.h"

namespace epd {
namespace {

absl::Status OnlyHere() {
  return absl::PermissionDeniedError(
      "epd is replaced from its own node alone, by root or its own user; run epctl replace there, "
      "with --socket");
}

}  // namespace

NodeService::Unary* NodeService::Replace(Context* context, const v1::ReplaceRequest* request,
                                         v1::ReplaceResponse* response) {
  if (Unary* refused = Refused(context, *request)) return refused;
  if (!gate_.callers().UidOf(*context).has_value())
    return new RefusedCall<Unary>(ToGrpc(OnlyHere()));
  const std::string by = gate_.callers().Describe(*context);
  return AnswerLater(context, node_, [this, request, response, by](const Finish& finish) {
    const Replacement::Done done = [this, request, response, by,
                                    finish](const absl::StatusOr<v1::HandoverVerdict>& verdict) {
      Log(LogLevel::kInfo, "order",
          {{"order", "replace"},
           {"program", request->program()},
           {"by", by},
           {"result", absl::StatusCodeToString(verdict.status().code())},
           {"why", verdict.status().message()}});
      if (verdict.ok()) {
        response->set_previous_version(node_.identity().version);
        response->set_version(verdict->epd_version());
        response->set_num_replacements(node_.identity().num_replacements + 1);
      }
      finish(verdict.status());
    };
    if (node_.stopping()) {
      return done(absl::FailedPreconditionError(
          "epd is stopping; start the other program once it has ended"));
    }
    if (absl::Status can = node_.CanSave(); !can.ok()) return done(can);
    node_.replacement().Begin({request->program(), by}, done);
  });
}

}  // namespace epd
