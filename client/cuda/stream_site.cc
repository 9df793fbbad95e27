#include "client/cuda/stream_site.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "client/cuda/stream_scratch.h"
#include "kernels/cuda/driver/slot_operations.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/region_layout.h"
#include "proto/epd/v1/route_counts.h"
#include "proto/epd/v1/slot_word.h"
#include "proto/epd/v1/text.h"

namespace epd::client {
namespace {

constexpr shm::Step kSteps[] = {shm::Step::kStreamAnnounce, shm::Step::kStreamPublish,
                                shm::Step::kStreamPulled};

static_assert(sizeof(PlanIds) == sizeof(shm::PlanName) &&
              offsetof(PlanIds, epoch) == offsetof(shm::PlanName, epoch) &&
              offsetof(PlanIds, plan_id) == offsetof(shm::PlanName, plan_id));

static_assert(sizeof(PlanHeader) == shm::kPlanHeaderBytes);

template <typename T>
T* AsPointer(cuda::DevicePointer address) {
  return reinterpret_cast<T*>(address);
}

cuda::UseWords* WordsOf(const StreamSite::Surroundings& around) {
  return around.own.has_value() ? around.own->words : around.places.words;
}

}  // namespace

// Remembers the first bad code.
class StreamSite::Queue {
 public:
  Queue(const StreamSite::Surroundings& around, cuda::Stream stream)
      : around_(around), stream_(stream) {}

  // By value: the driver's parameter is not const.
  void Batch(std::vector<cuda::BatchedOperation> operations) {
    Note("cuStreamBatchMemOp", [&] { return PutBatch(operations); });
  }
  // Puts the last operations: `arms`, and `over` also where something before has been refused, since what is in the stream
  // ends all the same. False: the driver refuses that, too.
  bool End(std::vector<cuda::BatchedOperation> arms, const cuda::BatchedOperation& over) {
    if (code_ != cuda::kSuccess) arms.clear();
    arms.push_back(over);
    const cuda::Result code = PutBatch(arms);
    Note("cuStreamBatchMemOp", [&] { return code; });
    return code == cuda::kSuccess;
  }
  void Launch(const cuda::LaunchList& list) {
    Note("cuLaunchKernel", [&] { return around_.kernels.Put(list, stream_); });
  }
  void Copy(cuda::DevicePointer to, const void* from, size_t bytes) {
    Note("cuMemcpyAsync", [&] {
      return around_.driver.copy_async(to, reinterpret_cast<cuda::DevicePointer>(from), bytes,
                                       stream_);
    });
  }
  void Fill(void* to, unsigned char byte, size_t bytes) {
    if (bytes == 0) return;
    Note("cuMemsetD8Async", [&] {
      return around_.driver.fill_async(reinterpret_cast<cuda::DevicePointer>(to), byte, bytes,
                                       stream_);
    });
  }
  Status status() const {
    if (code_ == cuda::kSuccess) return {};
    return MakeStatus(Code::kInternal, "the call cannot be put into the stream: %s",
                      cuda::Describe(around_.driver, call_, code_).c_str());
  }

 private:
  cuda::Result PutBatch(std::vector<cuda::BatchedOperation>& operations) {
    return around_.driver.stream_batch(stream_, static_cast<unsigned>(operations.size()),
                                       operations.data(), 0);
  }
  template <typename Do>
  void Note(const char* call, Do act) {
    if (code_ != cuda::kSuccess) return;
    code_ = act();
    call_ = call;
  }

  const StreamSite::Surroundings& around_;
  const cuda::Stream stream_;
  cuda::Result code_ = cuda::kSuccess;
  const char* call_ = "";
};

Status StreamSite::Create(std::shared_ptr<RegisteredSlots> slots, const StreamProgress& progress,
                          StreamCall call, std::unique_ptr<StreamSite>* out) {
  call.alignment = std::max<uint32_t>(call.alignment, 1);
  std::unique_ptr<StreamSite> site(new StreamSite(std::move(slots), std::move(call)));
  site->indices_ = site->slots_->pool().AcquireOfOneGroup(kNumSteps);
  if (site->indices_.empty()) {
    return MakeStatus(Code::kResourceExhausted,
                      "the %u op slots of this session are taken (slots_per_session), and a call "
                      "on a device takes %d of one group of %u for good; have the setting raised, "
                      "to at most %u, compile fewer programs, or call in a loop in place of many "
                      "times",
                      site->slots_->pool().view().num_slots(), kNumSteps, shm::kSlotsOfGroup,
                      limits::kMaxOpSlots);
  }
  site->Prepare(progress);
  *out = std::move(site);
  return {};
}

void StreamSite::Prepare(const StreamProgress& progress) {
  progress_ = progress.Of(number());
  progress_.Clear();
  for (int step = 0; step < kNumSteps; ++step) {
    shm::Slot& slot = SlotOf(step);
    slot.request = {};
    slot.reply = {};
    slot.failed.store(0, std::memory_order_release);
    batches_[step] = cuda::ArmOperations(WordOf(step));
    if (kSteps[step] != shm::Step::kStreamPulled) {
      const auto wait = cuda::WaitOperations(WordOf(step));
      batches_[step].insert(batches_[step].end(), wait.begin(), wait.end());
    }
    slots_->pool().SetStreamed(indices_[static_cast<size_t>(step)], true);
  }
}

StreamSite::~StreamSite() {
  Forget();
  for (const int index : indices_) slots_->pool().Release(index);
}

void StreamSite::Forget() {
  for (const int index : indices_) slots_->pool().SetStreamed(index, false);
}

void StreamSite::WriteRequest(int step, const Formation& formation) {
  shm::SlotRequest request = {};
  request.step = kSteps[step];
  request.kind = call_.kind;
  request.group_id = formation.group_id;
  request.epoch = formation.epoch;
  request.rank = call_.rank;
  std::copy(call_.program.begin(), call_.program.end(), request.program);
  request.ordinal = call_.ordinal;
  request.has_name = call_.name.empty() ? 0 : 1;
  request.dtype = call_.dtype;
  request.has_weights = call_.has_weights ? 1 : 0;
  request.top_k = call_.top_k;
  request.alignment = call_.alignment;
  request.row_bytes = call_.row_bytes;
  request.spec_hash = formation.spec_hash;
  request.num_tokens = call_.num_tokens;
  request.recv_capacity = call_.recv_capacity;
  RegionLayout layout;
  if (RanksMove(formation.spec)) {
    layout = MakeLayout(call_.kind,
                        {.num_experts = formation.spec.num_experts,
                         .num_tokens = formation.spec.max_tokens_per_rank,
                         .num_slots = formation.spec.recv_capacity_per_rank,
                         .top_k = MaxTopKOf(formation),
                         .row_bytes = call_.row_bytes},
                        RegionStorage::kDeviceRanks);
  } else {
    layout = LayoutOf(call_, formation.Routing(call_.top_k, call_.alignment));
  }
  request.plan_bytes = static_cast<uint32_t>(layout.plan_bytes);
  request.stage_bytes = layout.stage_bytes;
  request.out_bytes = layout.out_bytes;
  if (request.step == shm::Step::kStreamAnnounce) {
    text::Write(call_.name.empty() ? call_.scope : call_.name, request.announce.name);
  } else {
    request.stream = {.announce_slot = static_cast<uint32_t>(indices_[0]),
                      .reserved = 0,
                      .move_report = cuda::kNoReport,
                      .plan_header = {}};
  }
  SlotOf(step).request = request;
}

// A stream may arm meanwhile, and copy a plan's id into the request: after the first time only what is new is
// written. The formation's number comes last and says that all is there: under the old one every
// announce is refused.
void StreamSite::Enter(const Formation& formation) {
  for (int step = kNumSteps - 1; step >= 0; --step) {
    if (!entered_) WriteRequest(step, formation);
    shm::SlotRequest& request = SlotOf(step).request;
    request.epoch = formation.epoch;
    request.group_id = formation.group_id;
    request.spec_hash = formation.spec_hash;
    std::atomic_ref<uint64_t>(request.formation)
        .store(formation.formation, std::memory_order_release);
  }
  entered_ = true;
}

// A stream says that it is in a replay before it arms. So where the old number was read, what was said can be seen behind
// this fence; else the number is of no formation.
void StreamSite::Leave() {
  uint64_t& number = SlotOf(0).request.formation;
  std::atomic_ref<uint64_t>(number).store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

const uint32_t* StreamSite::Done(int step) const {
  return AsPointer<const uint32_t>(WordOf(step) + sizeof(uint32_t));
}

const PlanIds* StreamSite::plan_ids() const {
  return AsPointer<const PlanIds>(slots_->AddressOf(indices_[0]) + offsetof(shm::Slot, plan_name));
}

const int64_t* StreamSite::num_slots() const {
  return AsPointer<const int64_t>(RequestOf(1) + offsetof(shm::SlotRequest, recv_capacity));
}

uint64_t* StreamSite::found() const {
  return AsPointer<uint64_t>(RequestOf(2) + offsetof(shm::SlotRequest, stream.move_report));
}

uint16_t* StreamSite::told_counts() const {
  return AsPointer<uint16_t>(RequestOf(1) + shm::kRouteCountsAt);
}

cuda::DevicePointer StreamSite::RequestOf(int step) const {
  return slots_->AddressOf(indices_[static_cast<size_t>(step)]) + offsetof(shm::Slot, request);
}

Status StreamSite::Put(const Surroundings& around, const StreamBuffers& buffers,
                       cuda::Stream stream) {
  Queue queue(around, stream);
  if (around.captured) captured_ = true;
  if (around.own.has_value()) {
    PutOwn(around, buffers, queue);
  } else {
    PutForWorker(around, buffers, queue);
  }
  // The worker sees all arms of a use that is over.
  const uint32_t number = num_put_ + (around.captured ? 0 : 1);
  if (queue.End(batches_[2],
                around.captured ? progress_.SetReplaying(false) : progress_.SetEnded(number))) {
    num_put_ = number;
  }
  return queue.status();
}

// Which plan, and how many slots this rank needs by it: the routes differ at every call, and what is armed
// with constants finds them in memory.
void StreamSite::PutAnnounce(const Surroundings& around, const StreamBuffers& buffers,
                             Queue& queue) const {
  cuda::TellPlan::Args args;
  args.plan = static_cast<const uint8_t*>(buffers.handle_mem);
  args.spec = around.spec;
  args.rank = static_cast<int32_t>(call_.rank);
  args.plan_id = AsPointer<uint64_t>(RequestOf(0) + offsetof(shm::SlotRequest, plan_id));
  args.demand = AsPointer<uint64_t>(RequestOf(0) + offsetof(shm::SlotRequest, announce.demand));
  args.live_rows = &WordsOf(around)->live_rows;
  queue.Launch(cuda::TellPlanLaunches(args, around.device));
  AskAndTake(0, around, queue);
}

void StreamSite::AskAndTake(int step, const Surroundings& around, Queue& queue) const {
  std::vector<cuda::BatchedOperation> batch = batches_[step];
  if (step == 0 && around.captured) batch.insert(batch.begin(), progress_.SetReplaying(true));
  queue.Batch(std::move(batch));
  cuda::UseWords* const words = WordsOf(around);
  cuda::TakeAnswer::Args args;
  args.done = Done(step);
  args.answer = step == 0 ? &words->announced : &words->published;
  if (step == 0) {
    args.ids = plan_ids();
    args.ids_out = &words->ids;
  }
  queue.Launch(cuda::TakeAnswerLaunches(args, around.device));
}

void StreamSite::PutForWorker(const Surroundings& around, const StreamBuffers& buffers,
                              Queue& queue) const {
  if (call_.kind == shm::Kind::kPrepare) {
    cuda::ReportWord* const report = around.places.report;
    queue.Fill(report, 0xff, sizeof *report);
    queue.Fill(buffers.token_counts, 0, buffers.num_token_counts * sizeof(int32_t));
    queue.Launch(CountLaunchesOf(call_, around.spec, buffers, around.places, around.device));
    queue.Copy(RequestOf(0) + offsetof(shm::SlotRequest, announce.route_report), report,
               sizeof *report);
    AskAndTake(0, around, queue);
  } else {
    PutAnnounce(around, buffers, queue);
  }
  for (const cuda::LaunchList& list :
       CopyInOf(call_, around.spec, buffers, around.places, around.device)) {
    queue.Launch(list);
  }
  AskAndTake(1, around, queue);
  for (const cuda::LaunchList& list :
       CopyOutOf(call_, around.spec, buffers, around.places, around.device)) {
    queue.Launch(list);
  }
}

// The publish carries what the kernels found, so that the operation fails on every rank or on none.
void StreamSite::PutOwn(const Surroundings& around, const StreamBuffers& buffers,
                        Queue& queue) const {
  cuda::ReportWord* const report = around.own->scratch.report;
  queue.Fill(report, 0xff, sizeof *report);
  PutAnnounce(around, buffers, queue);
  for (const cuda::LaunchList& list :
       StageOf(call_, around.spec, buffers, *around.own, around.device)) {
    queue.Launch(list);
  }
  queue.Copy(RequestOf(1) + offsetof(shm::SlotRequest, stream.move_report), report, sizeof *report);
  queue.Copy(RequestOf(1) + offsetof(shm::SlotRequest, stream.plan_header), buffers.handle_mem,
             sizeof(PlanHeader));
  AskAndTake(1, around, queue);
  for (const cuda::LaunchList& list :
       ReadOf(call_, around.spec, buffers, *around.own, around.device)) {
    queue.Launch(list);
  }
}

// What this rank has read of its peers is its own to say: the operation is good, and the others have their rows.
Status StreamSite::TakeBadStage() {
  uint64_t& word = SlotOf(2).request.stream.move_report;
  const KernelError found =
      cuda::ReadReport(std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire));
  if (found.fault < KernelFault::kStageTruncated) return {};
  std::atomic_ref<uint64_t>(word).store(cuda::kNoReport, std::memory_order_release);
  return MakeStatus(
      Code::kDataLoss,
      "what rank %lld has staged is damaged or not of this operation (%s): the results "
      "of this rank are zeros, the others have theirs; find out what writes into that "
      "staging",
      static_cast<long long>(found.index), Describe(found.fault));
}

Status StreamSite::TakeFailure() {
  Status first;
  for (int step = 0; step < kNumSteps; ++step) {
    shm::Slot& slot = SlotOf(step);
    const uint32_t code = slot.failed.load(std::memory_order_acquire);
    if (code == 0) continue;
    // Behind pulled the outputs are there, or an earlier step has said why not. It may still be armed when its
    // worker dies, and the next one, which does not know it, answers with that.
    if (first.ok() && kSteps[step] != shm::Step::kStreamPulled) {
      first = {CodeFromNumber(code), std::string(text::Read(slot.reply.message))};
    }
    slot.failed.store(0, std::memory_order_release);
  }
  Status stage = TakeBadStage();
  return first.ok() ? stage : first;
}

bool StreamSite::Ring() const {
  bool open = false;
  for (const int index : indices_) open |= slots_->pool().Ring(index);
  return open;
}

void StreamSite::ClearAnswers() {
  for (int step = 0; step < kNumSteps; ++step) SlotOf(step).reply.message[0] = '\0';
}

Status StreamSite::AnswerOf(int step) const {
  const auto index = static_cast<uint32_t>(indices_[static_cast<size_t>(step)]);
  const uint64_t word = slots_->pool().view().word(index).load(std::memory_order_acquire);
  if (shm::Done(word) == 0 || shm::AnswerCode(word) == 0) return {};
  return {CodeFromNumber(shm::AnswerCode(word)),
          std::string(text::Read(SlotOf(step).reply.message))};
}

bool StreamSite::EndOpen(Code code) {
  bool failed = false;
  for (int step = 0; step < kNumSteps; ++step) {
    const bool ended = slots_->pool().EndOpen(indices_[static_cast<size_t>(step)], code);
    failed |= ended && kSteps[step] != shm::Step::kStreamPulled;  // As in TakeFailure.
  }
  return failed;
}

bool StreamSite::open() const {
  for (int step = 0; step < kNumSteps; ++step) {
    if (slots_->pool().IsOpen(indices_[static_cast<size_t>(step)])) return true;
  }
  return false;
}

}  // namespace epd::client
