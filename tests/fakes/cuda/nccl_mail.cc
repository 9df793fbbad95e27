#include "tests/fakes/cuda/nccl_mail.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

namespace epd::cuda {
namespace {

constexpr NcclResult kInvalidArgument = 4;
constexpr NcclResult kInvalidUsage = 5;
// A split takes its time.
constexpr int kSplitLooks = 20;
constexpr char kMagic[8] = {'F', 'A', 'K', 'E', 'N', 'C', 'C', 'L'};

struct IdBytes {
  char magic[8];
  int32_t maker;
  uint32_t unused;
  uint64_t number;
};

struct Piece {
  bool sends = false;
  char* at = nullptr;
  uint64_t bytes = 0;
};

// What one group has for one peer.
struct Parcel {
  uint64_t number = 0;  // Of the groups between the two.
  bool is_sent = false;
  bool is_received = false;
  std::vector<Piece> pieces;

  std::vector<uint64_t> Sizes(bool sends) const {
    std::vector<uint64_t> sizes;
    for (const Piece& piece : pieces) {
      if (piece.sends == sends) sizes.push_back(piece.bytes);
    }
    return sizes;
  }
};

struct Comm {
  std::string folder;
  int rank = 0;
  int num_ranks = 0;
  std::atomic<bool> aborted{false};
  bool blocks = false;
  bool finalized = false;
  bool destroyed = false;
  int num_children = 0;
  std::shared_ptr<Comm> forming;    // The last that was split off, until all members are in it,
  NcclComm* forming_out = nullptr;  // and where its handle goes then.
  int num_looks = 0;                // Of whoever splits, until it is there.
  std::thread::id splitter;
  std::map<int, uint64_t> groups_with;  // By peer.

  std::string File(char kind, int of) const { return folder + "/" + kind + std::to_string(of); }
  bool Has(char kind, int of) const { return access(File(kind, of).c_str(), F_OK) == 0; }
  void Mark(char kind) const {
    const std::string whole = folder + "/new-" + kind + std::to_string(rank);
    std::ofstream(whole) << getpid() << " " << getppid();
    std::filesystem::rename(whole, File(kind, rank));
  }
  bool Dead(int peer) const {
    pid_t pid = 0;
    if (!(std::ifstream(File('r', peer)) >> pid)) return false;
    return kill(pid, 0) != 0 && errno == ESRCH;
  }
  pid_t ParentOf(int peer) const {
    pid_t pid = 0;
    pid_t parent = 0;
    std::ifstream(File('r', peer)) >> pid >> parent;
    return parent;
  }
  std::string Name() const { return folder.substr(folder.rfind('/') + 1); }
};

struct Group {
  std::shared_ptr<Comm> comm;
  Stream stream = nullptr;
  std::map<int, Parcel> parcels;  // By peer.
};

NcclMail g_mail;
std::map<NcclComm, std::shared_ptr<Comm>> g_comms;
uintptr_t g_next = 1;
std::recursive_mutex g_mutex;  // Over everything but what streams do.
thread_local int g_depth = 0;
thread_local std::vector<Group> g_open;  // Of the group that is being made.
std::map<Comm*, std::vector<Group>> g_launching;

void Violation(const std::string& what) { g_mail.violation(what); }

std::string Listed(const std::vector<uint64_t>& sizes) {
  std::ostringstream text;
  for (const uint64_t size : sizes) text << " " << size;
  return sizes.empty() ? " nothing" : text.str();
}

// ---- in the stream ----

std::string ParcelFile(const Comm& comm, int from, int to, uint64_t number) {
  return comm.folder + "/p" + std::to_string(from) + "-" + std::to_string(to) + "-" +
         std::to_string(number);
}

void WriteSizes(std::ofstream& file, const std::vector<uint64_t>& sizes) {
  const uint64_t count = sizes.size();
  file.write(reinterpret_cast<const char*>(&count), sizeof count);
  file.write(reinterpret_cast<const char*>(sizes.data()),
             static_cast<std::streamsize>(count * sizeof(uint64_t)));
}

std::vector<uint64_t> ReadSizes(std::ifstream& file) {
  uint64_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  std::vector<uint64_t> sizes(count);
  file.read(reinterpret_cast<char*>(sizes.data()),
            static_cast<std::streamsize>(count * sizeof(uint64_t)));
  return sizes;
}

void Send(const Comm& comm, int peer, Parcel& parcel) {
  const std::string path = ParcelFile(comm, comm.rank, peer, parcel.number);
  {
    std::ofstream file(path + ".new", std::ios::binary);
    WriteSizes(file, parcel.Sizes(true));
    WriteSizes(file, parcel.Sizes(false));
    for (const Piece& piece : parcel.pieces) {
      if (piece.sends) file.write(piece.at, static_cast<std::streamsize>(piece.bytes));
    }
  }
  std::filesystem::rename(path + ".new", path);
  parcel.is_sent = true;
}

void Receive(const Comm& comm, int peer, Parcel& parcel) {
  const std::string path = ParcelFile(comm, peer, comm.rank, parcel.number);
  if (access(path.c_str(), F_OK) != 0) return;
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint64_t> theirs = ReadSizes(file);
  const std::vector<uint64_t> wanted = ReadSizes(file);
  parcel.is_received = true;
  if (theirs != parcel.Sizes(false) || wanted != parcel.Sizes(true)) {
    return Violation(comm.Name() + " rank " + std::to_string(comm.rank) + ", group " +
                     std::to_string(parcel.number) + " with rank " + std::to_string(peer) +
                     ": receives" + Listed(parcel.Sizes(false)) + " and is sent" + Listed(theirs) +
                     ", sends" + Listed(parcel.Sizes(true)) + " and is asked for" + Listed(wanted));
  }
  for (const Piece& piece : parcel.pieces) {
    if (!piece.sends) file.read(piece.at, static_cast<std::streamsize>(piece.bytes));
  }
  unlink(path.c_str());
}

bool Run(Group& group) {
  if (group.comm->aborted) return true;
  bool through = true;
  for (auto& [peer, parcel] : group.parcels) {
    if (!parcel.is_sent) Send(*group.comm, peer, parcel);
    if (!parcel.is_received) Receive(*group.comm, peer, parcel);
    through = through && parcel.is_received;
  }
  return through;
}

// ---- calls ----

std::shared_ptr<Comm> Find(NcclComm handle, const char* function) {
  const auto found = g_comms.find(handle);
  if (found == g_comms.end()) {
    Violation(std::string(function) + ": no communicator");
    return nullptr;
  }
  if (found->second->aborted || found->second->destroyed) {
    Violation(std::string(function) + " of " + found->second->Name() +
              (found->second->aborted ? ": it was aborted" : ": it was destroyed"));
    return nullptr;
  }
  return found->second;
}

// In order is an end that all members live to see.
void CheckAllLive(const Comm& comm, const char* function) {
  for (int peer = 0; peer < comm.num_ranks; ++peer) {
    if (comm.Has('f', peer)) continue;
    if (comm.Dead(peer) || comm.Has('a', peer)) {
      Violation(std::string(function) + " of " + comm.Name() + " rank " +
                std::to_string(comm.rank) + ": rank " + std::to_string(peer) +
                (comm.Dead(peer) ? " is dead" : " has aborted"));
    }
  }
}

NcclResult InitRank(NcclComm* out, int num_ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  const std::lock_guard lock(g_mutex);
  IdBytes bytes = {};
  std::memcpy(&bytes, id.bytes, sizeof bytes);
  if (std::memcmp(bytes.magic, kMagic, sizeof kMagic) != 0) return kInvalidArgument;
  auto comm = std::make_shared<Comm>();
  std::ostringstream name;
  name << "nccl-" << std::hex << bytes.number;
  comm->folder = g_mail.folder + "/" + name.str();
  comm->rank = rank;
  comm->num_ranks = num_ranks;
  if (rank < 0 || rank >= num_ranks) return kInvalidArgument;
  if (config->blocking != 0) Violation("ncclCommInitRankConfig of " + name.str() + ": it blocks");
  if (kill(bytes.maker, 0) != 0) {
    Violation("ncclCommInitRankConfig of " + name.str() + ": who made the id is gone");
  }
  mkdir(comm->folder.c_str(), 0700);
  if (comm->Has('r', rank)) {
    Violation("ncclCommInitRankConfig of " + name.str() + ": rank " + std::to_string(rank) +
              " has entered before");
  }
  comm->Mark('r');
  *out = reinterpret_cast<NcclComm>(g_next++);
  g_comms[*out] = std::move(comm);
  return kNcclInProgress;
}

void PutGroup(Group group) {
  const Stream stream = group.stream;
  g_mail.put(stream, [shared = std::make_shared<Group>(std::move(group))] { return Run(*shared); });
}

// Whoever splits has all members of the parent with him. As NCCL 2.28 does (init.cc, ncclCommSplit): of a parent whose calls do
// not block it returns success with no communicator, which its own thread writes once it is made.
NcclResult Split(NcclComm parent, int, int key, NcclComm* out, NcclConfig* config) {
  const std::lock_guard lock(g_mutex);
  const std::shared_ptr<Comm> from = Find(parent, "ncclCommSplit");
  if (from == nullptr) return kInvalidUsage;
  auto comm = std::make_shared<Comm>();
  comm->folder = from->folder + "-" + std::to_string(from->num_children++);
  comm->rank = key;
  comm->num_ranks = from->num_ranks;
  comm->blocks = config->blocking != 0;
  mkdir(comm->folder.c_str(), 0700);
  comm->Mark('r');
  from->forming = std::move(comm);
  from->forming_out = out;
  from->num_looks = kSplitLooks;
  from->splitter = std::this_thread::get_id();
  *out = nullptr;
  return kNcclSuccess;
}

bool IsForming(Comm& comm) {
  if (comm.forming == nullptr) return false;
  if (comm.splitter != std::this_thread::get_id()) {
    Violation("ncclCommGetAsyncError: another thread than the one that splits it asks");
  }
  if (--comm.num_looks > 0) return true;
  for (int peer = 0; peer < comm.num_ranks; ++peer) {
    if (!comm.forming->Has('r', peer)) return true;
  }
  const auto handle = reinterpret_cast<NcclComm>(g_next++);
  g_comms[handle] = std::move(comm.forming);
  *comm.forming_out = handle;
  comm.forming.reset();
  return false;
}

NcclResult StateOf(Comm& comm) {
  bool all = true;
  bool all_finalized = true;
  for (int peer = 0; peer < comm.num_ranks; ++peer) {
    const bool finalized = comm.Has('f', peer);
    all = all && comm.Has('r', peer);
    all_finalized = all_finalized && finalized;
    if (!finalized && (comm.Dead(peer) || comm.Has('a', peer))) return kNcclRemoteError;
  }
  if (!all || (comm.finalized && !all_finalized)) return kNcclInProgress;
  if (IsForming(comm)) return kNcclInProgress;
  const auto launching = g_launching.find(&comm);
  if (launching == g_launching.end()) return kNcclSuccess;
  for (Group& group : launching->second) PutGroup(std::move(group));
  g_launching.erase(launching);
  return kNcclInProgress;
}

NcclResult Add(Piece piece, int peer, NcclComm handle, Stream stream, const char* function) {
  const std::lock_guard lock(g_mutex);
  const std::shared_ptr<Comm> comm = Find(handle, function);
  if (comm == nullptr) return kInvalidUsage;
  if (g_depth == 0) {
    Violation(std::string(function) + ": outside of a group");
    return kInvalidUsage;
  }
  if (peer < 0 || peer >= comm->num_ranks || peer == comm->rank) return kInvalidArgument;
  if (g_open.empty() || g_open.back().comm != comm) g_open.push_back({comm, stream, {}});
  g_open.back().parcels[peer].pieces.push_back(piece);
  return kNcclSuccess;
}

NcclResult EndGroup() {
  const std::lock_guard lock(g_mutex);
  if (--g_depth > 0) return kNcclSuccess;
  bool launches = false;
  for (Group& group : g_open) {
    for (auto& [peer, parcel] : group.parcels) {
      parcel.number = group.comm->groups_with[peer]++;
    }
    Comm* comm = group.comm.get();
    if (comm->blocks) {
      PutGroup(std::move(group));
      continue;
    }
    launches = true;
    g_launching[comm].push_back(std::move(group));
  }
  g_open.clear();
  return launches ? kNcclInProgress : kNcclSuccess;
}

}  // namespace

void UseNcclMail(NcclMail mail) { g_mail = std::move(mail); }

NcclResult MakeNcclMailId(NcclUniqueId* id) {
  static std::random_device random;
  IdBytes bytes = {};
  std::memcpy(bytes.magic, kMagic, sizeof kMagic);
  bytes.maker = getpid();
  bytes.number = (static_cast<uint64_t>(random()) << 32) | random();
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::memcpy(id->bytes, &bytes, sizeof bytes);
  return kNcclSuccess;
}

bool NcclMailPlace(NcclComm comm, int* rank, int* num_ranks) {
  const std::lock_guard lock(g_mutex);
  const std::shared_ptr<Comm> found = Find(comm, "ncclCommCount");
  if (found == nullptr) return false;
  *rank = found->rank;
  *num_ranks = found->num_ranks;
  return true;
}

int NcclMailTeamRanks(NcclComm comm) {
  const std::lock_guard lock(g_mutex);
  const std::shared_ptr<Comm> found = Find(comm, "ncclTeamLsa");
  int team = 0;
  int run = 0;
  for (int rank = 0; found != nullptr && rank < found->num_ranks; ++rank) {
    ++run;
    const bool goes_on =
        rank + 1 < found->num_ranks && found->ParentOf(rank + 1) == found->ParentOf(rank);
    if (goes_on) continue;
    team = std::gcd(team, run);
    run = 0;
  }
  return team;
}

NcclTable NcclMailTable() {
  NcclTable table;
  table.get_version = +[](int* version) {
    *version = 23007;
    return kNcclSuccess;
  };
  table.get_error_string = +[](NcclResult code) {
    return code == kNcclRemoteError ? "remote process exited" : "invalid usage";
  };
  table.init_rank = &InitRank;
  table.split = &Split;
  table.get_async_error = +[](NcclComm handle, NcclResult* state) {
    const std::lock_guard lock(g_mutex);
    const std::shared_ptr<Comm> comm = Find(handle, "ncclCommGetAsyncError");
    *state = comm == nullptr ? kInvalidUsage : StateOf(*comm);
    return comm == nullptr ? kInvalidUsage : kNcclSuccess;
  };
  table.finalize = +[](NcclComm handle) {
    const std::lock_guard lock(g_mutex);
    const std::shared_ptr<Comm> comm = Find(handle, "ncclCommFinalize");
    if (comm == nullptr) return kInvalidUsage;
    CheckAllLive(*comm, "ncclCommFinalize");
    comm->finalized = true;
    comm->Mark('f');
    return kNcclInProgress;
  };
  table.destroy = +[](NcclComm handle) {
    const std::lock_guard lock(g_mutex);
    const std::shared_ptr<Comm> comm = Find(handle, "ncclCommDestroy");
    if (comm == nullptr) return kInvalidUsage;
    CheckAllLive(*comm, "ncclCommDestroy");
    comm->destroyed = true;
    return kNcclSuccess;
  };
  table.abort = +[](NcclComm handle) {
    const std::lock_guard lock(g_mutex);
    const std::shared_ptr<Comm> comm = Find(handle, "ncclCommAbort");
    if (comm == nullptr) return kInvalidUsage;
    comm->aborted = true;
    comm->Mark('a');
    g_launching.erase(comm.get());
    return kNcclSuccess;
  };
  table.group_start = +[]() {
    ++g_depth;
    return kNcclSuccess;
  };
  table.group_end = &EndGroup;
  table.send = +[](const void* from, size_t bytes, int, int peer, NcclComm comm, Stream stream) {
    char* at = static_cast<char*>(const_cast<void*>(from));
    return Add({.sends = true, .at = at, .bytes = bytes}, peer, comm, stream, "ncclSend");
  };
  table.receive = +[](void* to, size_t bytes, int, int peer, NcclComm comm, Stream stream) {
    return Add({.sends = false, .at = static_cast<char*>(to), .bytes = bytes}, peer, comm, stream,
               "ncclRecv");
  };
  return table;
}

}  // namespace epd::cuda
