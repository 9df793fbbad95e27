// This process's ranks on GPUs: which stream group a call on a device belongs to.
//
// In C++, where the rest of this folder is used through epd_program.h: a call in a stream keeps a site and its slots
// between uses, which live and die with the framework's compiled program. They are client/cuda's objects, and what is
// here only finds them by alias and device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/made_once.h"
#include "client/c/mutex.h"
#include "client/cuda/stream_group.h"
#include "client/program/groups.h"

namespace epd::program {

// Thread-safe.
class DeviceGroups {
 public:
  // The one of this process, leaked: streams may outlive main().
  static DeviceGroups& Shared();

  // The group that a call (its alias and sizes) means on a device, made by the first call.
  Status Find(const epd_program_call& call, int device,
              std::shared_ptr<client::StreamGroup>* group);

  // Finds groups in another way from now on, for tests of the handlers alone.
  using Finder =
      std::function<Status(const epd_program_call&, int, std::shared_ptr<client::StreamGroup>*)>;
  void FindWith(Finder finder);

  // The first failure since somebody asked, in the alias's groups; "": in any.
  Status Check(const std::string& alias);
  void Finalize(const std::string& alias);

 private:
  struct Entry {
    std::weak_ptr<JoinedGroup> joined;
    std::shared_ptr<client::StreamGroup> group;
  };
  using Key = std::pair<std::string, int>;  // Alias and device.

  // Loads modules, allocates on a device, waits for the group: one for each key at a time, and under no lock.
  client::MadeOnce<Key, Entry> entries_;
  void KeepPast(const std::string& alias, const std::shared_ptr<client::StreamGroup>& group);

  client::Mutex mutex_;
  Finder finder_ EPD_GUARDED_BY(mutex_);
  std::map<std::string, Status> left_ EPD_GUARDED_BY(mutex_);  // Failures of groups that were left.
  // Groups that were joined anew since, by alias: graphs that were captured in them may still be replayed.
  std::vector<std::pair<std::string, std::weak_ptr<client::StreamGroup>>> past_
      EPD_GUARDED_BY(mutex_);
};

// A call site's part on each device. Thread-safe.
class DeviceSites {
 public:
  // The site of `call` in `group` on `device`; made by the first call, and anew where the group is another.
  Status Get(const std::shared_ptr<client::StreamGroup>& group, int device,
             const client::StreamCall& call, client::HeldSite** site);

 private:
  struct Entry {
    std::shared_ptr<client::StreamGroup> group;
    std::unique_ptr<client::HeldSite> site;
  };
  client::Mutex mutex_;
  std::map<int, Entry> entries_ EPD_GUARDED_BY(mutex_);
  std::vector<Entry> past_ EPD_GUARDED_BY(mutex_);  // Of groups that were joined anew since.
};

}  // namespace epd::program
