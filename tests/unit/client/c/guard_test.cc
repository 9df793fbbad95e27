// Goal: no exported function of the C library lets an exception out, wherever memory runs out or a thread cannot be had in it, and the
// process can go on afterwards: it connects, joins and calls anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <regex>
#include <set>
#include <string>

#include "client/c/epd_client.h"
#include "client/c/status.h"
#include "tests/fakes/failing_memory.h"
#include "tests/fakes/failing_threads.h"
#include "tests/fakes/fake_daemon.h"

namespace epd::testing {
namespace {

using client::Code;

constexpr int kMostAllocations = 3000;
constexpr uint32_t kHidden = 4;

// One client and its group of one rank, made again where a call has ended them.
class Holder {
 public:
  explicit Holder(std::string socket) : socket_(std::move(socket)) {}
  ~Holder() { Drop(); }

  int Connect() {
    epd_connect_args args = {};
    args.struct_size = sizeof args;
    args.socket_path = socket_.c_str();
    return epd_connect(&args, &client, &error);
  }
  int Join() {
    epd_group_spec spec = {};
    spec.struct_size = sizeof spec;
    spec.name = "guard";
    spec.num_ranks = 1;
    spec.num_experts = 2;
    spec.max_tokens_per_rank = 8;
    spec.recv_capacity_per_rank = 16;
    spec.hidden = kHidden;
    epd_join_args args = {};
    args.struct_size = sizeof args;
    args.spec = &spec;
    const uint32_t rank = 0;
    args.ranks = &rank;
    args.num_ranks = 1;
    return epd_join(client, &args, &group, &error);
  }
  // Without failures.
  void Restore() {
    if (client != nullptr && epd_check(client, nullptr) != EPD_OK) Drop();
    if (client == nullptr) {
      ASSERT_EQ(Connect(), EPD_OK) << error.message;
    }
    if (group == nullptr) {
      ASSERT_EQ(Join(), EPD_OK) << error.message;
    }
  }
  void Drop() {
    if (group != nullptr) epd_leave(group, nullptr);
    if (client != nullptr) epd_disconnect(client);
    group = nullptr;
    client = nullptr;
  }
  void Leave() {
    if (group != nullptr) epd_leave(group, nullptr);
    group = nullptr;
  }

  epd_client* client = nullptr;
  epd_group* group = nullptr;
  epd_error error = {.struct_size = sizeof(epd_error), .code = 0, .message = {}};

 private:
  const std::string socket_;
};

epd_prepare_args PrepareArgs() {
  static int32_t counts[2];
  static int32_t total;
  static int32_t indices[1];
  static char plan[1 << 16];
  epd_prepare_args args = {};
  args.struct_size = sizeof args;
  args.key.name = "prepare";
  args.key.execution = EPD_EXECUTION_NEXT;
  args.topk_idx = indices;
  args.idx_bytes = 4;
  args.top_k = 1;
  args.token_counts = counts;
  args.total_recv = &total;
  args.handle_mem = plan;
  args.handle_mem_bytes = sizeof plan;
  return args;
}

// Arguments that are refused, after they were read.
template <typename Args>
Args RefusedArgs() {
  Args args = {};
  args.struct_size = sizeof args;
  args.key.name = "refused";
  args.key.execution = EPD_EXECUTION_NEXT;
  return args;
}

struct Function {
  std::function<int(Holder&)> call;
  // What is taken away before, so that the call makes it.
  std::function<void(Holder&)> before = [](Holder&) {};
};

std::map<std::string, Function> Functions() {
  const auto leave = [](Holder& h) { h.Leave(); };
  const auto drop = [](Holder& h) { h.Drop(); };
  std::map<std::string, Function> all;
  all["epd_client_version"].call = [](Holder&) { return *epd_client_version() == '\0' ? 1 : 0; };
  all["epd_connect"] = {[](Holder& h) { return h.Connect(); }, drop};
  all["epd_find_socket"].call = [](Holder& h) {
    char path[64];
    return epd_find_socket("/run/epd/none.sock", path, sizeof path, &h.error);
  };
  all["epd_join"] = {[](Holder& h) { return h.Join(); }, leave};
  all["epd_leave"].call = [](Holder& h) {
    return epd_leave(std::exchange(h.group, nullptr), &h.error);
  };
  all["epd_disconnect"] = {[](Holder& h) {
                             epd_disconnect(std::exchange(h.client, nullptr));
                             return 0;
                           },
                           leave};
  all["epd_check"].call = [](Holder& h) { return epd_check(h.client, &h.error); };
  all["epd_socket_path"].call = [](Holder& h) { return *epd_socket_path(h.client) == '/' ? 0 : 1; };
  all["epd_group_get_info"].call = [](Holder& h) {
    epd_group_info info = {};
    info.struct_size = sizeof info;
    return epd_group_get_info(h.group, &info);
  };
  all["epd_group_check"].call = [](Holder& h) { return epd_group_check(h.group, &h.error); };
  all["epd_begin_execution"].call = [](Holder& h) {
    static uint8_t next = 0;
    const uint8_t program[16] = {1, ++next};
    epd_begin_execution(h.group, 0, program);
    return 0;
  };
  all["epd_handle_mem_size"].call = [](Holder&) {
    return epd_handle_mem_size(2, 2, 2, 1) > 0 ? 0 : 1;
  };
  all["epd_prepare"].call = [](Holder& h) {
    const epd_prepare_args args = PrepareArgs();
    return epd_prepare(h.group, &args, &h.error);
  };
  const auto scatter = [](auto function) {
    return [function](Holder& h) {
      const auto args = RefusedArgs<epd_scatter_args>();
      return function(h.group, &args, &h.error);
    };
  };
  const auto gather = [](auto function) {
    return [function](Holder& h) {
      const auto args = RefusedArgs<epd_gather_args>();
      return function(h.group, &args, &h.error);
    };
  };
  all["epd_dispatch"].call = scatter(&epd_dispatch);
  all["epd_combine_backward"].call = scatter(&epd_combine_backward);
  all["epd_combine"].call = gather(&epd_combine);
  all["epd_dispatch_backward"].call = gather(&epd_dispatch_backward);
  all["epd_ragged_all_to_all"].call = [](Holder& h) {
    const auto args = RefusedArgs<epd_ragged_args>();
    return epd_ragged_all_to_all(h.group, &args, &h.error);
  };
  all["epd_refuse"].call = [](Holder& h) {
    auto args = RefusedArgs<epd_refuse_args>();
    args.code = 3;
    args.text = "a text that is too long to lie in the string itself";
    return epd_refuse(h.group, &args, &h.error);
  };
  const auto begin = [](Holder& h, epd_pending** pending) {
    static epd_prepare_args args = PrepareArgs();
    const epd_try_args tried = {sizeof tried, EPD_OPERATION_PREPARE, &args, 0};
    return epd_try(h.group, &tried, pending, &h.error);
  };
  all["epd_try"].call = [begin](Holder& h) {
    epd_pending* pending = nullptr;
    const int code = begin(h, &pending);
    return code == EPD_PENDING ? epd_finish(pending, &h.error) : code;
  };
  all["epd_finish"] = all["epd_try"];
  return all;
}

std::set<std::string> Exported() {
  std::ifstream file("client/c/epd_client.h");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::regex declaration(R"(EPD_API [\w ]+?\*? ?(epd_\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it)
    names.insert((*it)[1]);
  return names;
}

TEST(GuardTest, EveryExportedFunctionIsCalledHere) {
  std::set<std::string> called;
  for (const auto& [name, unused] : Functions()) called.insert(name);
  EXPECT_EQ(Exported(), called);
}

// An error of the class that the failure is of, or one of the call's own.
void ExpectDescribed(const std::string& name, int code, const Holder& holder) {
  EXPECT_NE(code, static_cast<int>(Code::kInternal)) << name << ": " << holder.error.message;
}

TEST(GuardTest, WhereverMemoryRunsOutTheFunctionReturns) {
  const fakes::FakeDaemon daemon;
  Holder holder(daemon.socket_path());
  for (const auto& [name, function] : Functions()) {
    int64_t count = 0;
    bool failed = true;
    for (; failed && count < kMostAllocations; ++count) {
      holder.Restore();
      function.before(holder);
      t_allocations_left = count;
      int code = 0;
      EXPECT_NO_THROW(code = function.call(holder)) << name << ", allocation " << count;
      failed = t_allocations_left < 0;
      t_allocations_left = -1;
      ExpectDescribed(name, code, holder);
    }
    EXPECT_LT(count, kMostAllocations) << name;
  }
  holder.Restore();
  const epd_prepare_args args = PrepareArgs();
  EXPECT_EQ(epd_prepare(holder.group, &args, &holder.error), EPD_OK) << holder.error.message;
}

TEST(GuardTest, WhereNoThreadCanBeHadTheFunctionReturns) {
  const fakes::FakeDaemon daemon;
  for (const auto& [name, function] : Functions()) {
    Holder holder(daemon.socket_path());  // Its watchdog does not run yet.
    holder.Restore();
    function.before(holder);
    g_threads_left = 0;
    int code = 0;
    EXPECT_NO_THROW(code = function.call(holder)) << name;
    g_threads_left = -1;
    ExpectDescribed(name, code, holder);
  }
}

// A rank that can have no watchdog says so to the others, as an error of its own of which they hear, and goes on once it can.
TEST(GuardTest, WithoutAWatchdogACallIsAnErrorWithItsPlace) {
  const fakes::FakeDaemon daemon;
  Holder holder(daemon.socket_path());
  holder.Restore();
  const epd_prepare_args args = PrepareArgs();
  g_threads_left = 0;
  EXPECT_EQ(epd_prepare(holder.group, &args, &holder.error),
            static_cast<int>(Code::kResourceExhausted));
  g_threads_left = -1;
  EXPECT_THAT(holder.error.message,
              ::testing::AllOf(::testing::HasSubstr("group=guard"), ::testing::HasSubstr("rank=0"),
                               ::testing::HasSubstr("no thread 'epd-watchdog'")));
  EXPECT_EQ(epd_prepare(holder.group, &args, &holder.error), EPD_OK) << holder.error.message;
}

}  // namespace
}  // namespace epd::testing
