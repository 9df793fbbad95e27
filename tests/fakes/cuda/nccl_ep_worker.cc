// A worker whose backend calls into libnccl_ep.so where the real one will: when a group's communicator is
// made, and when rows are moved. The rows themselves are moved by the cpu backend.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "daemon/backend/cpu/cpu_backend.h"
#include "daemon/backend/nccl_ep/nccl_ep_library.h"
#include "daemon/backend/unique_id_child.h"
#include "daemon/worker/worker_main.h"

namespace epd {
namespace {

class CallsNcclEp : public Backend {
 public:
  explicit CallsNcclEp(std::unique_ptr<CpuBackend> rows) : rows_(std::move(rows)) {}

  std::string name() const override { return "nccl_ep"; }
  std::string simd() const override { return rows_->simd(); }
  absl::StatusOr<std::unique_ptr<ArenaSet>> CreateArenas(int num_arenas,
                                                         uint64_t arena_bytes) override {
    return rows_->CreateArenas(num_arenas, arena_bytes);
  }
  void StartMove(MoveId id, ArenaSet& arenas, const MoveGroup& group, const MoveJob& job,
                 absl::Time now) override {
    if (absl::Status called = Call(); !called.ok()) return moved_.push_back({id, called});
    rows_->StartMove(id, arenas, group, job, now);
  }
  absl::StatusOr<std::vector<MovedRows>> Poll(absl::Time now) override {
    absl::StatusOr<std::vector<MovedRows>> moved = rows_->Poll(now);
    if (moved.ok()) moved->insert(moved->end(), moved_.begin(), moved_.end());
    moved_.clear();
    return moved;
  }
  absl::Status InitCommunicator(uint64_t group_id, uint64_t epoch,
                                const std::string& unique_id) override {
    if (absl::Status called = Call(); !called.ok()) return called;
    return rows_->InitCommunicator(group_id, epoch, unique_id);
  }

 private:
  static absl::Status Call() {
    const NcclEpLibrary library = OpenNcclEp(NcclEpCandidates(SelfPath()));
    if (library.problem.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError("nccl_ep cannot be used: " + library.problem);
  }

  std::unique_ptr<CpuBackend> rows_;
  std::vector<MovedRows> moved_;
};

absl::StatusOr<ServedBackends> Make(const v1::WorkerHello& hello) {
  absl::StatusOr<std::unique_ptr<CpuBackend>> rows = CpuBackend::Create(hello.simd());
  if (!rows.ok()) return rows.status();
  ServedBackends served;
  served.backends.push_back(std::make_unique<CallsNcclEp>(*std::move(rows)));
  return served;
}

}  // namespace
}  // namespace epd

int main(int argc, char** argv) {
  absl::string_view argument = argc == 2 ? argv[1] : "";
  if (absl::ConsumePrefix(&argument, epd::kUniqueIdFlag)) {
    return epd::UniqueIdChildMain(std::string(argument));
  }
  return epd::WorkerMain(argument, &epd::Make);
}
