// A libnccl_ep.so that does what the real one does, on a fake driver's streams and over the fake NCCL: HT,
// expert-major. Its kinds of death, too: EPD_FAKE_NCCL_EP says "exit", "abort", "throw", "hang", "error" (a
// code), "counts" (a layout that it does not have), or "old" (its version); EPD_FAKE_NCCL_EP_AT says where:
// "version" (unless said), "create", "update", "dispatch", "combine", "destroy". With a marker in
// EPD_FAKE_NCCL_EP_ONCE only once for each time that somebody makes it.
//
// A broken rule of the interface is written down where the fake driver writes its own, and so is each call that all members
// make, in "nccl_ep_calls". Each rule says beside it what of NVIDIA/nccl-extensions at 44d2de0 it comes from: its header
// nccl_ep.h, its nccl_ep.cc, its kernels, or how Transformer Engine's ep_backend.cpp calls it. "Ours" is a rule that the
// library does not have, and that epd keeps.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "daemon/backend/nccl_ep/nccl_ep_abi.h"
#include "tests/fakes/cuda/bfloat16_sum.h"
#include "tests/fakes/cuda/nccl_ep_layout.h"

namespace {

namespace abi = epd::nccl_ep;
using abi::Result;
using epd::fake_nccl_ep::Bfloat16Sum;
using epd::fake_nccl_ep::LayOut;
using epd::fake_nccl_ep::Routes;
using epd::fake_nccl_ep::Source;
using epd::fake_nccl_ep::Zones;

constexpr Result kInvalidArgument = 4;
constexpr int kUint8 = 1;

using Comm = void*;
using Stream = void*;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool Asked(const std::string& how, const std::string& at) {
  if (Environment("EPD_FAKE_NCCL_EP") != how) return false;
  const std::string where = Environment("EPD_FAKE_NCCL_EP_AT");
  if ((where.empty() ? "version" : where) != at) return false;
  const char* marker = std::getenv("EPD_FAKE_NCCL_EP_ONCE");
  return marker == nullptr || unlink(marker) == 0;
}

void EndAsAsked(const std::string& at) {
  if (Asked("exit", at)) std::exit(EXIT_FAILURE);
  if (Asked("abort", at)) std::abort();
  if (Asked("throw", at)) throw std::runtime_error("EPException: a fake assertion");
  if (Asked("hang", at)) {
    for (;;) pause();
  }
}

Result Broken(const std::string& what) {
  std::fprintf(stderr, "fake NCCL EP: broken rule: %s\n", what.c_str());
  const std::string folder = Environment("EPD_FAKE_CUDA_FOLDER");
  if (!folder.empty()) std::ofstream(folder + "/violations", std::ios::app) << what << "\n";
  return kInvalidArgument;
}

void NoteCall(const char* function) {
  const std::string folder = Environment("EPD_FAKE_CUDA_FOLDER");
  if (!folder.empty()) {
    std::ofstream(folder + "/nccl_ep_calls", std::ios::app) << std::string(function) + "\n";
  }
}

// ---- the libraries that are open in this process already ----

void* Find(const char* library, const char* symbol) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : dlsym(handle, symbol);
}

template <typename F>
F Nccl(const char* symbol) {
  return reinterpret_cast<F>(Find("libnccl.so.2", symbol));
}

void Put(Stream stream, std::function<void()> run) {
  using Run = std::function<void()>;
  using PutFunction = void (*)(Stream, bool (*)(void*), void (*)(void*), void*);
  static const auto put = reinterpret_cast<PutFunction>(Find("libcuda.so.1", "epd_fake_put"));
  const auto go = [](void* state) {
    (*static_cast<Run*>(state))();
    return true;
  };
  put(
      stream, go, [](void* state) { delete static_cast<Run*>(state); }, new Run(std::move(run)));
}

// nccl.h's ncclTeam.
struct Team {
  int num_ranks;
  int rank;
  int stride;
};

using Bytes = std::vector<uint8_t>;

struct Group {
  Comm comm = nullptr;
  int num_ranks = 0;
  int rank = 0;
  int team_ranks = 0;
  abi::GroupConfig config;
  std::thread::id thread;
  int num_handles = 0;
};

// Every rank's bytes to every rank; the stream has them when it is through.
struct Mail {
  Bytes sent;
  std::vector<Bytes> received;  // By rank.
};

std::shared_ptr<Mail> Exchange(const Group& group, size_t bytes, Stream stream,
                               std::function<void(Bytes& sent)> fill) {
  static const auto start = Nccl<int (*)()>("ncclGroupStart");
  static const auto end = Nccl<int (*)()>("ncclGroupEnd");
  static const auto send = Nccl<int (*)(const void*, size_t, int, int, Comm, Stream)>("ncclSend");
  static const auto receive = Nccl<int (*)(void*, size_t, int, int, Comm, Stream)>("ncclRecv");
  auto mail = std::make_shared<Mail>();
  mail->sent.resize(bytes);
  mail->received.assign(static_cast<size_t>(group.num_ranks), Bytes(bytes));
  Put(stream, [mail, fill = std::move(fill)] { fill(mail->sent); });
  start();
  for (int peer = 0; peer < group.num_ranks; ++peer) {
    if (peer == group.rank) continue;
    send(mail->sent.data(), bytes, kUint8, peer, group.comm, stream);
    receive(mail->received[static_cast<size_t>(peer)].data(), bytes, kUint8, peer, group.comm,
            stream);
  }
  if (const int code = end(); code != 0) Broken("its communicator does not block");
  Put(stream,
      [mail, self = static_cast<size_t>(group.rank)] { mail->received[self] = mail->sent; });
  return mail;
}

// What the stream knows of a routing.
struct Routing {
  std::vector<Routes> routes;  // By rank.
  std::vector<Zones> zones;
};

struct Handle {
  Group* group = nullptr;
  size_t alignment = 1;
  int64_t top_k = 0;
  int64_t num_tokens = -1;
  std::shared_ptr<Routing> routing;  // Of the last update.
};

// nccl_ep.h: every struct carries its size and a magic number, which the library checks first.
template <typename T>
bool Sound(const T* one, const char* name, uint32_t magic = abi::kMagic) {
  if (one != nullptr && one->size == sizeof(T) && one->magic == magic) return true;
  Broken(std::string(name) + " is none, or has a wrong size or magic");
  return false;
}

struct Extent {
  size_t least = 0;
  size_t most = SIZE_MAX;
};
Extent Exactly(size_t value) { return {value, value}; }
Extent AtLeast(size_t value) { return {.least = value}; }

// tensorAssertValid of nccl_ep.cc: memory, unless there is no element.
bool Is(const abi::Tensor* tensor, int type, std::vector<Extent> extents, const char* name) {
  if (!Sound(tensor, name, abi::kTensorMagic)) return false;
  bool fits = tensor->type == type && tensor->num_dims == extents.size() && tensor->dims != nullptr;
  bool empty = false;
  for (size_t i = 0; fits && i < extents.size(); ++i) {
    fits = tensor->dims[i] >= extents[i].least && tensor->dims[i] <= extents[i].most;
    empty = empty || tensor->dims[i] == 0;
  }
  fits = fits && (tensor->memory != nullptr || empty);
  if (!fits) Broken(std::string(name) + " has another type or shape");
  return fits;
}

// Ours: its calls depend on the thread's current device, and one thread keeps them in order.
bool OnItsThread(const Group& group, const char* call) {
  if (std::this_thread::get_id() == group.thread) return true;
  Broken(std::string(call) + " on another thread than its group's");
  return false;
}

std::string WhyNoGroup(const abi::GroupConfig& config, int num_ranks) {
  struct stat cache;
  // Ours: it is for high throughput, as of the version that epd knows.
  if (config.version != abi::kApiVersion || config.algorithm != abi::kHighThroughput) {
    return "it is for high throughput, with another version";
  }
  // ncclEpInitHandle asks for it.
  if (config.num_experts == 0 || config.num_experts % static_cast<uint32_t>(num_ranks) != 0) {
    return "num_experts";
  }
  // ncclEpCreateGroup: a token names no more experts than there are.
  if (config.top_k > config.num_experts) return "num_topk";
  // Ours, for builds from before 28 Jun 2026 (5819ba1), which refuse it on several nodes; later ones round up for themselves.
  if (config.max_send_tokens % 64 != 0) return "max_send_tokens";
  // ncclEpCreateGroup; a receive budget of 0 would be its eager mode.
  if (config.max_send_tokens == 0 || config.max_recv_slots < config.max_send_tokens) {
    return "fewer receive slots than tokens";
  }
  // ncclEpCreateGroup: kernels copy 16 bytes at a time.
  if (config.max_row_bytes == 0 || config.max_row_bytes % 16 != 0) return "max_row_bytes";
  // jit/nvcc_compiler.cc runs nvcc, and aborts where it cannot; the folder of the cache is ours.
  if (access(Environment("NCCL_EP_JIT_NVCC").c_str(), X_OK) != 0) return "no nvcc";
  if (stat(Environment("NCCL_EP_JIT_CACHE_DIR").c_str(), &cache) != 0) return "no cache";
  return "";
}

// What kernels cannot do ncclEpDispatch says when it launches them: weights of a team go by 16 bytes, and
// launch_dispatch_permute (ht_ep_adapter.cu) has room for 256 experts of a rank.
std::string WhyNoKernel(const Group& group) {
  const uint32_t experts = group.config.num_experts / static_cast<uint32_t>(group.num_ranks);
  if (experts * static_cast<uint32_t>(group.team_ranks) % 4 != 0) {
    return "experts_per_lsa_team is no multiple of 4";
  }
  return experts > 256 ? "more than 256 experts per rank" : "";
}

// Over the capacity without drops, the real one's kernel traps (scan_kernel.cuh).
Zones Landed(const Group& group, const std::vector<Routes>& routes, int rank, size_t alignment) {
  Zones zones = LayOut(routes, rank, static_cast<int32_t>(group.config.num_experts), alignment);
  if (zones.slots.size() <= group.config.max_recv_slots) return zones;
  if (group.config.overflow != abi::kOverflowDrop) std::abort();
  zones.slots.resize(group.config.max_recv_slots);
  return zones;
}

// ---- in the stream ----

void TakeRouting(const Mail& mail, int32_t top_k, const Group& group, size_t alignment,
                 Routing& routing) {
  for (const Bytes& from : mail.received) {
    Routes& routes = routing.routes.emplace_back();
    uint32_t budget = 0;
    std::memcpy(&routes.num_tokens, from.data(), 4);
    std::memcpy(&budget, from.data() + 4, 4);
    // ncclEpCreateGroup compares them; here ranks have no stream to do it in before.
    if (budget != group.config.max_recv_slots) Broken("ncclEpCreateGroup: budgets differ");
    routes.top_k = top_k;
    routes.experts.resize(static_cast<size_t>(routes.num_tokens) * static_cast<size_t>(top_k));
    std::memcpy(routes.experts.data(), from.data() + 8, routes.experts.size() * sizeof(int32_t));
  }
  for (int rank = 0; rank < group.num_ranks; ++rank) {
    routing.zones.push_back(Landed(group, routing.routes, rank, alignment));
  }
}

// What came, and where it goes.
struct Delivery {
  size_t row = 0;         // Bytes.
  size_t weights_at = 0;  // In what came.
  size_t slots = 0;
  uint8_t* rows = nullptr;
  float* weights = nullptr;  // Null: none.
};

float WeightAt(const Bytes& from, const Delivery& d, size_t index) {
  float weight = 0;
  std::memcpy(&weight, from.data() + d.weights_at + index * sizeof(float), sizeof weight);
  return weight;
}

void Deliver(const Mail& mail, const Routing& routing, const Group& group, const Delivery& d) {
  const Zones& zones = routing.zones[static_cast<size_t>(group.rank)];
  if (group.config.overflow == abi::kOverflowDrop) std::memset(d.rows, 0, d.slots * d.row);
  size_t slot = 0;
  int32_t expert = static_cast<int32_t>(group.config.num_experts) / group.num_ranks * group.rank;
  for (const int32_t length : zones.lengths) {
    for (int32_t i = 0; i < length && slot < zones.slots.size(); ++i, ++slot) {
      const Source& source = zones.slots[slot];
      std::memset(d.rows + slot * d.row, 0, d.row);
      if (d.weights != nullptr) d.weights[slot] = 0;
      if (source.rank < 0) continue;
      const Bytes& from = mail.received[static_cast<size_t>(source.rank)];
      const auto token = static_cast<size_t>(source.token);
      std::memcpy(d.rows + slot * d.row, from.data() + token * d.row, d.row);
      const Routes& routes = routing.routes[static_cast<size_t>(source.rank)];
      for (int32_t k = 0; d.weights != nullptr && k < routes.top_k; ++k) {
        if (routes.At(source.token, k) != expert) continue;
        d.weights[slot] =
            WeightAt(from, d, token * static_cast<size_t>(routes.top_k) + static_cast<size_t>(k));
      }
    }
    ++expert;
  }
}

// local_permute_reduce rounds what a rank has for a token, and the combine kernel what all ranks have (ht_ep.cuh). Ours: the
// header promises nothing of a token without a route, and it gets nothing.
void Sum(const Mail& mail, const Routing& routing, const Group& group, const Delivery& d) {
  const Routes& routes = routing.routes[static_cast<size_t>(group.rank)];
  const int32_t locals = static_cast<int32_t>(group.config.num_experts) / group.num_ranks;
  size_t flat = 0;
  for (int32_t t = 0; t < routes.num_tokens; ++t) {
    std::map<size_t, Bfloat16Sum> of_owner;
    for (int32_t k = 0; k < routes.top_k; ++k, ++flat) {
      const int32_t e = routes.At(t, k);
      if (d.weights != nullptr) d.weights[flat] = 0;
      if (e < 0) continue;
      const auto owner = static_cast<size_t>(e / locals);
      const auto slot = static_cast<size_t>(routing.zones[owner].slot_of.at({e, {group.rank, t}}));
      if (slot >= d.slots) continue;
      const Bytes& from = mail.received[owner];
      of_owner.try_emplace(owner, d.row).first->second.Add(from.data() + slot * d.row);
      if (d.weights != nullptr) d.weights[flat] = WeightAt(from, d, slot);
    }
    if (of_owner.empty()) continue;
    Bfloat16Sum all(d.row);
    for (const auto& [owner, sum] : of_owner) all.Add(sum.Round().data());
    std::memcpy(d.rows + static_cast<size_t>(t) * d.row, all.Round().data(), d.row);
  }
}

}  // namespace

#define EPD_EXPORT extern "C" __attribute__((visibility("default")))

EPD_EXPORT Result ncclEpGetVersion(int* version) {
  EndAsAsked("version");
  *version = Environment("EPD_FAKE_NCCL_EP") == "old" ? 100 : 200;
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpCreateGroup(Group** out, Comm comm, const abi::GroupConfig* config) {
  EndAsAsked("create");
  if (Asked("error", "create")) return kInvalidArgument;
  if (!Sound(config, "ncclEpCreateGroup: the config")) return kInvalidArgument;
  auto group = std::make_unique<Group>();
  group->comm = comm;
  group->config = *config;
  group->thread = std::this_thread::get_id();
  if (Nccl<int (*)(Comm, int*)>("ncclCommCount")(comm, &group->num_ranks) != 0 ||
      Nccl<int (*)(Comm, int*)>("ncclCommUserRank")(comm, &group->rank) != 0) {
    return Broken("ncclEpCreateGroup: no communicator");
  }
  const std::string why = WhyNoGroup(*config, group->num_ranks);
  if (!why.empty()) return Broken("ncclEpCreateGroup: " + why);
  group->team_ranks = Nccl<Team (*)(Comm)>("ncclTeamLsa")(comm).num_ranks;
  *out = group.release();
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpGroupDestroy(Group* group) {
  EndAsAsked("destroy");
  if (!OnItsThread(*group, "ncclEpGroupDestroy")) return kInvalidArgument;
  // nccl_ep.h: handles go before their group.
  if (group->num_handles > 0) return Broken("ncclEpGroupDestroy: it has handles");
  delete group;
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpInitHandle(Handle** out, Group* group, int layout,
                                   const abi::HandleConfig* config, int top_k,
                                   const abi::Tensor* memory) {
  if (!OnItsThread(*group, "ncclEpInitHandle")) return kInvalidArgument;
  if (!Sound(config, "ncclEpInitHandle: the config")) return kInvalidArgument;
  const size_t alignment = config->alignment < 1 ? 1 : config->alignment;
  // ht_init_handle of nccl_ep.cc refuses num_topk <= 0; -1, which the header offers, is for low latency alone.
  if (top_k <= 0) return Broken("ncclEpInitHandle: num_topk of high throughput is not positive");
  // ... and one above the group's, where that has been given one.
  if (group->config.top_k > 0 && static_cast<uint32_t>(top_k) > group->config.top_k) {
    return Broken("ncclEpInitHandle: num_topk exceeds the group's");
  }
  // HandleConfig in nccl_ep.h: a power of two. A memory of the caller's is for a size that it asked for first.
  if (layout != abi::kExpertMajor || memory != nullptr || (alignment & (alignment - 1)) != 0) {
    return Broken("ncclEpInitHandle: not as for high throughput");
  }
  ++group->num_handles;
  *out = new Handle{.group = group, .alignment = alignment, .top_k = top_k, .routing = nullptr};
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpHandleDestroy(Handle* handle) {
  if (!OnItsThread(*handle->group, "ncclEpHandleDestroy")) return kInvalidArgument;
  --handle->group->num_handles;
  delete handle;
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpUpdateHandle(Handle* handle, const abi::Tensor* topk,
                                     const abi::LayoutReport* report, Stream stream) {
  EndAsAsked("update");
  if (Asked("error", "update")) return kInvalidArgument;
  NoteCall("ncclEpUpdateHandle");
  const Group& group = *handle->group;
  if (!OnItsThread(group, "ncclEpUpdateHandle")) return kInvalidArgument;
  const size_t locals = group.config.num_experts / static_cast<size_t>(group.num_ranks);
  // ncclEpUpdateHandle: the handle's buffers were made for these sizes; the reports may be longer.
  if (!Is(topk, abi::kInt32,
          {{.most = group.config.max_send_tokens}, Exactly(static_cast<size_t>(handle->top_k))},
          "topk_idx") ||
      !Sound(report, "the layout report") ||
      !Is(report->expert_slots, abi::kInt32, {AtLeast(locals)}, "expert_slots") ||
      !Is(report->total_slots, abi::kInt32, {AtLeast(1)}, "total_slots")) {
    return kInvalidArgument;
  }
  const auto num_tokens = static_cast<int32_t>(topk->dims[0]);
  const auto top_k = static_cast<int32_t>(topk->dims[1]);
  handle->num_tokens = num_tokens;
  const size_t bytes =
      8 + size_t{group.config.max_send_tokens} * static_cast<size_t>(top_k) * sizeof(int32_t);
  const size_t used = topk->dims[0] * topk->dims[1] * sizeof(int32_t);
  const auto mail = Exchange(
      group, bytes, stream,
      [from = topk->memory, num_tokens, used, budget = group.config.max_recv_slots](Bytes& b) {
        std::memcpy(b.data(), &num_tokens, 4);
        std::memcpy(b.data() + 4, &budget, 4);
        std::memcpy(b.data() + 8, from, used);
      });
  auto routing = std::make_shared<Routing>();
  handle->routing = routing;
  const bool lies = Asked("counts", "update");
  Put(stream, [mail, routing, top_k, lies, group, alignment = handle->alignment,
               zones_out = static_cast<int32_t*>(report->expert_slots->memory),
               total_out = static_cast<int32_t*>(report->total_slots->memory)] {
    TakeRouting(*mail, top_k, group, alignment, *routing);
    const std::vector<int32_t>& lengths = routing->zones[static_cast<size_t>(group.rank)].lengths;
    *total_out = 0;
    for (size_t e = 0; e < lengths.size(); ++e) {
      zones_out[e] = lengths[e] + (lies && e == 0 ? 1 : 0);
      *total_out += lengths[e];
    }
  });
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpDispatch(Handle* handle, const abi::DispatchInputs* in,
                                 const abi::DispatchOutputs* out, const abi::LayoutReport* none,
                                 const abi::DispatchConfig* config, Stream stream) {
  EndAsAsked("dispatch");
  if (Asked("error", "dispatch")) return kInvalidArgument;
  NoteCall("ncclEpDispatch");
  const Group& group = *handle->group;
  if (!OnItsThread(group, "ncclEpDispatch")) return kInvalidArgument;
  // nccl_ep.h: a handle knows no routing before its first update.
  if (handle->routing == nullptr) return Broken("ncclEpDispatch before ncclEpUpdateHandle");
  if (none != nullptr || !Sound(in, "the dispatch inputs") || !Sound(out, "the dispatch outputs") ||
      !Sound(config, "the dispatch config")) {
    return Broken("ncclEpDispatch: its arguments");
  }
  const bool forward = config->direction == abi::kForward;
  const auto tokens = static_cast<size_t>(handle->num_tokens);
  const auto top_k = static_cast<size_t>(handle->top_k);
  const size_t slots = group.config.max_recv_slots;
  // nccl_ep.h, as ep_backend.cpp calls it: weights go with a forward dispatch alone.
  if (forward != (in->weights != nullptr) || forward != (out->weights != nullptr)) {
    return Broken("ncclEpDispatch: weights go forward, and must");
  }
  // ncclEpDispatch: of what it was told the numbers are exact; the outputs hold all that the group may receive.
  if (!Is(in->rows, abi::kBfloat16, {Exactly(tokens), AtLeast(1)}, "tokens") ||
      !Is(out->rows, abi::kBfloat16, {AtLeast(slots), Exactly(in->rows->dims[1])},
          "received tokens") ||
      (forward && !Is(in->weights, abi::kFloat32, {Exactly(tokens), Exactly(top_k)}, "weights")) ||
      (forward && !Is(out->weights, abi::kFloat32, {AtLeast(slots)}, "received weights"))) {
    return kInvalidArgument;
  }
  const size_t row = in->rows->dims[1] * 2;
  if (row > group.config.max_row_bytes || row % 16 != 0) {
    return Broken("ncclEpDispatch: rows of another size");
  }
  const std::string why = WhyNoKernel(group);
  if (!why.empty()) return Broken("ncclEpDispatch: " + why);
  const size_t weights_at = group.config.max_send_tokens * row;
  const size_t bytes = weights_at + group.config.max_send_tokens * top_k * sizeof(float);
  const void* weights = forward ? in->weights->memory : nullptr;
  const auto mail = Exchange(group, bytes, stream, [=, rows = in->rows->memory](Bytes& b) {
    std::memcpy(b.data(), rows, tokens * row);
    if (weights != nullptr) {
      std::memcpy(b.data() + weights_at, weights, tokens * top_k * sizeof(float));
    }
  });
  const Delivery delivery = {
      .row = row,
      .weights_at = weights_at,
      .slots = slots,
      .rows = static_cast<uint8_t*>(out->rows->memory),
      .weights = static_cast<float*>(forward ? out->weights->memory : nullptr)};
  Put(stream, [mail, delivery, group, routing = handle->routing] {
    Deliver(*mail, *routing, group, delivery);
  });
  return abi::kSuccess;
}

EPD_EXPORT Result ncclEpCombine(Handle* handle, const abi::CombineInputs* in,
                                const abi::CombineOutputs* out, const abi::CombineConfig* config,
                                Stream stream) {
  EndAsAsked("combine");
  if (Asked("error", "combine")) return kInvalidArgument;
  NoteCall("ncclEpCombine");
  const Group& group = *handle->group;
  if (!OnItsThread(group, "ncclEpCombine")) return kInvalidArgument;
  if (handle->routing == nullptr) return Broken("ncclEpCombine before ncclEpUpdateHandle");
  if (!Sound(in, "the combine inputs") || !Sound(out, "the combine outputs") ||
      !Sound(config, "the combine config")) {
    return kInvalidArgument;
  }
  const bool backward = config->direction == abi::kBackward;
  const auto tokens = static_cast<size_t>(handle->num_tokens);
  const auto top_k = static_cast<size_t>(handle->top_k);
  // ep_backend.cpp: a dispatch's backward is a combine with weights in and out; any other has none.
  if (backward != (in->weights != nullptr) || backward != (out->weights != nullptr)) {
    return Broken("ncclEpCombine: weights go backward, and must");
  }
  // ncclEpCombine, and that a slot has one weight.
  if (!Is(in->rows, abi::kBfloat16, {AtLeast(0), AtLeast(1)}, "expert rows") ||
      !Is(out->rows, abi::kBfloat16, {Exactly(tokens), Exactly(in->rows->dims[1])},
          "combined tokens") ||
      (backward &&
       !Is(in->weights, abi::kFloat32, {Exactly(in->rows->dims[0])}, "expert weights")) ||
      (backward &&
       !Is(out->weights, abi::kFloat32, {Exactly(tokens), Exactly(top_k)}, "combined weights"))) {
    return kInvalidArgument;
  }
  if (in->rows->dims[1] * 2 % 16 != 0) return Broken("ncclEpCombine: rows of another size");
  const size_t row = in->rows->dims[1] * 2;
  const size_t slots = group.config.max_recv_slots;
  const size_t sent = std::min<size_t>(in->rows->dims[0], slots);
  const void* weights = backward ? in->weights->memory : nullptr;
  const auto mail = Exchange(group, slots * (row + sizeof(float)), stream,
                             [=, rows = in->rows->memory](Bytes& b) {
                               std::memcpy(b.data(), rows, sent * row);
                               if (weights != nullptr) {
                                 std::memcpy(b.data() + slots * row, weights, sent * sizeof(float));
                               }
                             });
  const Delivery delivery = {
      .row = row,
      .weights_at = slots * row,
      .slots = slots,
      .rows = static_cast<uint8_t*>(out->rows->memory),
      .weights = static_cast<float*>(backward ? out->weights->memory : nullptr)};
  Put(stream, [mail, delivery, group, routing = handle->routing] {
    Sum(*mail, *routing, group, delivery);
  });
  return abi::kSuccess;
}
