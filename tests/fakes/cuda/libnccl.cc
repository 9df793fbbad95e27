// libnccl.so.2 without GPUs, beside a fake driver in the same process: nccl_mail.h. Members meet in
// EPD_FAKE_CUDA_FOLDER, where broken rules are written down, too.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "tests/fakes/cuda/nccl_mail.h"

namespace {

using epd::cuda::NcclComm;
using epd::cuda::NcclConfig;
using epd::cuda::NcclResult;
using epd::cuda::NcclTable;
using epd::cuda::NcclUniqueId;
using epd::cuda::Stream;

using Put = void (*)(Stream, bool (*)(void*), void (*)(void*), void*);

// The driver that this process has opened, by now, is the one whose streams are meant.
Put FindPut() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Put>(dlsym(driver, "epd_fake_put"));
}

std::string Folder() {
  const char* folder = std::getenv("EPD_FAKE_CUDA_FOLDER");
  return folder == nullptr ? "" : folder;
}

const NcclTable& Table() {
  static const NcclTable& table = *new NcclTable([] {
    epd::cuda::UseNcclMail(
        {.folder = Folder(),
         .put =
             [](Stream stream, std::function<bool()> run) {
               using Run = std::function<bool()>;
               static const Put put = FindPut();
               put(
                   stream, [](void* state) { return (*static_cast<Run*>(state))(); },
                   [](void* state) { delete static_cast<Run*>(state); }, new Run(std::move(run)));
             },
         .violation =
             [](const std::string& what) {
               std::fprintf(stderr, "fake NCCL: broken rule: %s\n", what.c_str());
               std::ofstream(Folder() + "/violations", std::ios::app) << what << "\n";
             }});
    return epd::cuda::NcclMailTable();
  }());
  return table;
}

}  // namespace

#define EPD_EXPORT extern "C" __attribute__((visibility("default")))

EPD_EXPORT NcclResult ncclGetVersion(int* version) { return Table().get_version(version); }
EPD_EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) { return epd::cuda::MakeNcclMailId(id); }
EPD_EXPORT const char* ncclGetLastError(void*) { return "the fake has no error"; }
EPD_EXPORT const char* ncclGetErrorString(NcclResult code) {
  return Table().get_error_string(code);
}
EPD_EXPORT NcclResult ncclCommInitRankConfig(NcclComm* comm, int num_ranks, NcclUniqueId id,
                                             int rank, NcclConfig* config) {
  return Table().init_rank(comm, num_ranks, id, rank, config);
}
EPD_EXPORT NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* state) {
  return Table().get_async_error(comm, state);
}
EPD_EXPORT NcclResult ncclCommSplit(NcclComm parent, int color, int key, NcclComm* comm,
                                    NcclConfig* config) {
  return Table().split(parent, color, key, comm, config);
}
EPD_EXPORT NcclResult ncclCommCount(NcclComm comm, int* count) {
  int rank = 0;
  return epd::cuda::NcclMailPlace(comm, &rank, count) ? epd::cuda::kNcclSuccess : 5;
}
EPD_EXPORT NcclResult ncclCommUserRank(NcclComm comm, int* rank) {
  int count = 0;
  return epd::cuda::NcclMailPlace(comm, rank, &count) ? epd::cuda::kNcclSuccess : 5;
}
// Its struct ncclTeam.
struct Team {
  int num_ranks;
  int rank;
  int stride;
};
EPD_EXPORT Team ncclTeamLsa(NcclComm comm) {
  int rank = 0;
  int count = 0;
  const int ranks = epd::cuda::NcclMailTeamRanks(comm);
  if (ranks == 0 || !epd::cuda::NcclMailPlace(comm, &rank, &count)) return {0, 0, 1};
  return {ranks, rank % ranks, 1};
}
EPD_EXPORT NcclResult ncclCommFinalize(NcclComm comm) { return Table().finalize(comm); }
EPD_EXPORT NcclResult ncclCommDestroy(NcclComm comm) { return Table().destroy(comm); }
EPD_EXPORT NcclResult ncclCommAbort(NcclComm comm) { return Table().abort(comm); }
EPD_EXPORT NcclResult ncclGroupStart() { return Table().group_start(); }
EPD_EXPORT NcclResult ncclGroupEnd() { return Table().group_end(); }
EPD_EXPORT NcclResult ncclSend(const void* from, size_t count, int type, int peer, NcclComm comm,
                               Stream stream) {
  return Table().send(from, count, type, peer, comm, stream);
}
EPD_EXPORT NcclResult ncclRecv(void* to, size_t count, int type, int peer, NcclComm comm,
                               Stream stream) {
  return Table().receive(to, count, type, peer, comm, stream);
}
