#include "daemon/rpc/cluster/coordinator_stream.h"

#include <utility>

#include "daemon/rpc/cluster/link_proof.h"

namespace epd {

CoordinatorStream::CoordinatorStream(v1::Cluster::Stub& stub, const std::string& proof,
                                     v1::NodeReport hello, OnView on_view, OnEnd on_end)
    : on_view_(std::move(on_view)), on_end_(std::move(on_end)) {
  if (!proof.empty()) context_.AddMetadata(kNodeProofKey, proof);
  stub.async()->Sync(&context_, this);
  AddHold();  // Writes start outside of gRPC's callbacks.
  StartRead(&incoming_);
  Offer(std::move(hello));
  StartCall();
}

CoordinatorStream::~CoordinatorStream() {
  context_.TryCancel();
  done_.WaitForNotification();
}

void CoordinatorStream::Answer(v1::NodeReport hello, v1::ClusterAnswer answer) {
  Amend(std::move(hello),
        [&](v1::NodeReport& waiting) { *waiting.add_answers() = std::move(answer); });
}

void CoordinatorStream::OfferReport(v1::NodeReport report) {
  Amend(v1::NodeReport(), [&](v1::NodeReport& waiting) {
    report.mutable_answers()->Swap(waiting.mutable_answers());
    waiting = std::move(report);
  });
}

void CoordinatorStream::OnReadDone(bool ok) {
  if (ok) {
    on_view_(std::exchange(incoming_, v1::ClusterView()));
    return StartRead(&incoming_);
  }
  End(grpc::Status::OK);
  RemoveHold();
}

void CoordinatorStream::OnDone(const grpc::Status& status) {
  on_end_(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  done_.Notify();
}

}  // namespace epd
