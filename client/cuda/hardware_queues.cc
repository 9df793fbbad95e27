#include "client/cuda/hardware_queues.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "client/c/mutex.h"

namespace epd::client {
namespace {

constexpr int kQueuesByDefault = 8;
constexpr int kMostQueues = 32;
constexpr int kQueuesOfRank = 2;

// What is no number leaves CUDA to its own choice, of which nothing is known: the least.
int QueuesOf(const char* said) {
  if (said == nullptr) return kQueuesByDefault;
  char* end = nullptr;
  const long number = std::strtol(said, &end, 10);
  if (end == said || *end != '\0') return 1;
  return static_cast<int>(std::clamp<long>(number, 1, kMostQueues));
}

std::string List(const std::set<uint32_t>& ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

using Key = std::tuple<const void*, int, std::string>;  // Driver, device, group.
struct Open {
  Mutex mutex;
  std::map<Key, std::multiset<uint32_t>> ranks EPD_GUARDED_BY(mutex);
};

// Leaked: a stream's thread may outlive main().
Open& AllOpen() {
  static auto* const open = new Open;
  return *open;
}

Key KeyOf(const RankOnDevice::Place& place) { return {place.driver, place.device, place.group}; }

}  // namespace

Status CheckQueues(const std::string& device, const std::vector<uint32_t>& ranks, uint32_t rank,
                   const char* said) {
  std::set<uint32_t> all(ranks.begin(),
                         ranks.end());  // A rank that is joined again is there twice.
  all.insert(rank);
  const int needed = kQueuesOfRank * static_cast<int>(all.size());
  if (all.size() == 1 || QueuesOf(said) >= needed) return {};
  const std::string got = said == nullptr ? "nothing (CUDA's default is 8)" : said;
  if (needed > kMostQueues) {
    return MakeStatus(Code::kFailedPrecondition,
                      "ranks=%s of this process are on one GPU, %s: got %zu, expected at most %d, "
                      "since a process has at most %d hardware queues there, and streams that "
                      "share one wait for each other for ever; give the ranks several processes",
                      List(all).c_str(), device.c_str(), all.size(), kMostQueues / kQueuesOfRank,
                      kMostQueues);
  }
  return MakeStatus(Code::kFailedPrecondition,
                    "ranks=%s of this process are on one GPU, %s; %s: got %s, expected at least %d "
                    "for %zu ranks, since streams that share a hardware queue wait for each other "
                    "for ever; start the program with %s=%d, which CUDA reads when it begins, or "
                    "give each rank a process of its own",
                    List(all).c_str(), device.c_str(), kQueuesSetting, got.c_str(), needed,
                    all.size(), kQueuesSetting, kMostQueues);
}

Status RankOnDevice::Take(const Place& place, const std::string& name,
                          std::unique_ptr<RankOnDevice>* taken) {
  std::unique_ptr<RankOnDevice> made(new RankOnDevice(place));
  MutexLock lock(AllOpen().mutex);
  std::multiset<uint32_t>& ranks = AllOpen().ranks[KeyOf(place)];
  const Status fits =
      CheckQueues(name, {ranks.begin(), ranks.end()}, place.rank, std::getenv(kQueuesSetting));
  ranks.insert(place.rank);  // The destructor takes it away, also where it is refused.
  if (fits.ok()) {
    *taken = std::move(made);
    return {};
  }
  lock.Unlock();
  return fits;
}

RankOnDevice::~RankOnDevice() {
  MutexLock lock(AllOpen().mutex);
  const auto there = AllOpen().ranks.find(KeyOf(place_));
  if (there == AllOpen().ranks.end()) return;
  const auto rank = there->second.find(place_.rank);
  if (rank != there->second.end()) there->second.erase(rank);
  if (there->second.empty()) AllOpen().ranks.erase(there);
}

}  // namespace epd::client
