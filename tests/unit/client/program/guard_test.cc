// Goal: no exported function of the program library lets an exception out, wherever memory runs out or a thread cannot be had in it or
// in the C library below it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "client/program/epd_program.h"
#include "tests/fakes/failing_memory.h"
#include "tests/fakes/failing_threads.h"
#include "tests/fakes/fake_daemon.h"

extern "C" int JoinFromC(const char* alias, uint32_t ranks, epd_error* error);

namespace epd::testing {
namespace {

constexpr int kMostAllocations = 3000;
constexpr int kInternal = 13;

epd_error g_error = {.struct_size = sizeof(epd_error), .code = 0, .message = {}};

epd_program_call Call(const char* name) {
  epd_program_call call = {};
  call.struct_size = sizeof call;
  call.alias = "default";
  call.name = name;
  return call;
}

// Arguments that are refused after they were read; of prepare those that are not.
template <typename Args>
Args MakeArgs() {
  Args args = {};
  args.struct_size = sizeof args;
  return args;
}

epd_prepare_args PrepareArgs() {
  static int32_t index, counts, total;
  static char plan[4096];
  auto args = MakeArgs<epd_prepare_args>();
  args.topk_idx = &index;
  args.idx_bytes = 4;
  args.top_k = 1;
  args.token_counts = &counts;
  args.total_recv = &total;
  args.handle_mem = plan;
  args.handle_mem_bytes = sizeof plan;
  return args;
}

using Function = std::function<int()>;

template <typename Args>
Function Operation(int (*function)(const epd_program_call*, const Args*, epd_error*)) {
  return [function] {
    const epd_program_call call = Call("a name that is too long to lie in the string itself");
    const auto args = MakeArgs<Args>();
    return function(&call, &args, &g_error);
  };
}

int TryPrepare() {
  const epd_prepare_args args = PrepareArgs();
  epd_program_pending* pending = nullptr;
  epd_program_call call = Call("tried");
  call.pending = &pending;
  const int code = epd_program_prepare(&call, &args, &g_error);
  return code == EPD_PENDING ? epd_program_finish(pending, &g_error) : code;
}

std::map<std::string, Function> Functions(const std::string& socket) {
  const auto describe = [](const char*, int64_t, epd_error*) -> int { return EPD_OK; };
  return {
      {"epd_program_connect",
       [socket] { return epd_program_connect(socket.c_str(), "", &g_error); }},
      {"epd_program_socket_path",
       [] {
         char path[8];
         epd_program_socket_path(path, sizeof path);
         return 0;
       }},
      {"epd_program_job_of_environment",
       [] {
         char job[8];
         epd_program_job_of_environment(job, sizeof job);
         return 0;
       }},
      {"epd_program_join",
       [] {
         epd_program_finalize("joined");
         return JoinFromC("joined", 1, &g_error);
       }},
      {"epd_program_describe_with",
       [describe] {
         epd_program_describe_with("a prefix that is too long to lie in the string itself/",
                                   describe);
         return 0;
       }},
      {"epd_program_wait", [] { return epd_program_wait("default", &g_error); }},
      {"epd_program_state",
       [] {
         uint64_t epoch = 0;
         epd_program_state("default", &epoch);
         return 0;
       }},
      {"epd_program_finalize",
       [] {
         epd_program_finalize("default");
         return 0;
       }},
      {"epd_program_resolve",
       [] {
         uint32_t rank = 0;
         const epd_program_call call = Call(nullptr);
         return epd_program_resolve(&call, &rank, &g_error);
       }},
      {"epd_program_prepare",
       [] {
         const epd_prepare_args args = PrepareArgs();
         const epd_program_call call = Call("prepare");
         return epd_program_prepare(&call, &args, &g_error);
       }},
      {"epd_program_dispatch", Operation(&epd_program_dispatch)},
      {"epd_program_combine", Operation(&epd_program_combine)},
      {"epd_program_dispatch_backward", Operation(&epd_program_dispatch_backward)},
      {"epd_program_combine_backward", Operation(&epd_program_combine_backward)},
      {"epd_program_ragged_all_to_all", Operation(&epd_program_ragged_all_to_all)},
      {"epd_program_finish", &TryPrepare},
      {"epd_program_handshake",
       [] {
         const epd_program_call call = Call("handshake");
         return epd_program_handshake(&call, &g_error);
       }},
      {"epd_program_refuse",
       [] {
         const epd_program_call call = Call("refuse");
         return epd_program_refuse(&call, 3, "a text that is too long to lie in the string itself",
                                   &g_error);
       }},
      {"epd_program_start", [] { return epd_program_start([](void*) {}, nullptr, &g_error); }},
      {"epd_program_words",
       [] {
         char words[64];
         epd_program_words(3, "[epd:INVALID_ARGUMENT] recv_capacity_per_rank is too small", words,
                           sizeof words);
         return 0;
       }},
      {"epd_program_retry",
       [] { return epd_program_retry(14, "[epd:UNAVAILABLE] gone") == nullptr ? kInternal : 0; }},
      {"epd_program_set_interpreter",
       [] {
         epd_program_set_interpreter(nullptr);
         return 0;
       }},
      {"epd_program_handle_mem_size",
       [] { return epd_program_handle_mem_size(2, 2, 2, 1) > 0 ? 0 : kInternal; }},
  };
}

class ProgramGuardTest : public ::testing::Test {
 protected:
  ProgramGuardTest() { setenv("EPD_SOCKET", daemon_.socket_path().c_str(), 1); }
  ~ProgramGuardTest() override {
    g_threads_left = -1;
    for (const char* alias : {"default", "joined"}) epd_program_finalize(alias);
  }
  // Without failures: the group is there, and its session lives.
  static void Restore() {
    if (epd_program_state("default", nullptr) == EPD_PROGRAM_READY) return;
    epd_program_finalize("default");
    ASSERT_EQ(JoinFromC("default", 1, &g_error), EPD_OK) << g_error.message;
  }
  const fakes::FakeDaemon daemon_;
};

TEST_F(ProgramGuardTest, EveryExportedFunctionIsCalledHere) {
  std::ifstream file("client/program/epd_program.h");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::regex declaration(R"(EPD_API [\w ]+?\*? ?(epd_\w+)\()");
  std::set<std::string> exported;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it)
    exported.insert((*it)[1]);
  std::set<std::string> called;
  for (const auto& [name, unused] : Functions("")) called.insert(name);
  EXPECT_EQ(exported, called);
}

TEST_F(ProgramGuardTest, WhereverMemoryRunsOutTheFunctionReturns) {
  for (const auto& [name, function] : Functions(daemon_.socket_path())) {
    int64_t count = 0;
    bool failed = true;
    for (; failed && count < kMostAllocations; ++count) {
      Restore();
      t_allocations_left = count;
      int code = 0;
      EXPECT_NO_THROW(code = function()) << name << ", allocation " << count;
      failed = t_allocations_left < 0;
      t_allocations_left = -1;
      EXPECT_NE(code, kInternal) << name << ": " << g_error.message;
    }
    EXPECT_LT(count, kMostAllocations) << name;
  }
}

TEST_F(ProgramGuardTest, WhereNoThreadCanBeHadTheFunctionReturns) {
  for (const auto& [name, function] : Functions(daemon_.socket_path())) {
    epd_program_finalize("default");
    Restore();
    g_threads_left = 0;
    int code = 0;
    EXPECT_NO_THROW(code = function()) << name;
    g_threads_left = -1;
    EXPECT_NE(code, kInternal) << name << ": " << g_error.message;
  }
}

}  // namespace
}  // namespace epd::testing
