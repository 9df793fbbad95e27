// One rank of a group through the C API, with buffers that are poisoned before each call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/epd_client.h"
#include "tests/integration/client_c/harness/exchange_case.h"

namespace epd::testing {

// A status of the C API.
struct Result {
  int code = 0;
  std::string message;
  bool ok() const { return code == EPD_OK; }
};

// What a group is joined with, beyond the case's sizes.
struct JoinOptions {
  std::string group = "test";
  std::string instance = {};
  std::string tenant = {};
  std::string program = {};
  std::string metadata = {};
  std::string backend = {};
  epd_executor executor = EPD_EXECUTOR_DEFAULT;  // Of cases that name none.
  std::string device = {};                       // Of the rank.
  std::map<uint32_t, std::string> also = {};     // Further ranks of the session, on their devices.
  int64_t warn_after_ms = 0;
  int64_t absent_ms = 0;
  int64_t undecided_ms = 0;
  int64_t form_ms = 20'000;
  epd_plans plans = {};  // Of the group that this one goes on for.
};

// Not thread-safe, but several may share a session. Destruction leaves the group.
class ClientRank {
 public:
  ClientRank(epd_client* client, const ExchangeCase& c, uint32_t rank)
      : client_(client), case_(c), rank_(rank) {}
  ~ClientRank();
  ClientRank(const ClientRank&) = delete;
  ClientRank& operator=(const ClientRank&) = delete;

  Result Join(const JoinOptions& options = {});
  Result Leave();
  // Works in another one's group, which is the other one's to leave.
  void Borrow(ClientRank& other) {
    group_ = other.group_;
    borrowed_ = true;
  }

  // The operations, on `data`. Each compares nothing: outputs are the members below. `name` is the
  // key's.
  Result Prepare(const RankData& data, const std::string& name = "prepare");
  Result Dispatch(const RankData& data, const std::string& name = "dispatch");
  Result Combine(const RankData& data, const std::string& name = "combine");
  Result DispatchBackward(const RankData& data, const std::string& name = "dispatch_bwd");
  Result CombineBackward(const RankData& data, const std::string& name = "combine_bwd");

  // All five, under names that begin with `prefix`; the first difference from `data` in words, or
  // the first error's text, or nothing.
  std::string RunAndCompare(const RankData& data, const std::string& prefix = "");

  // From now on instead of the case's.
  void set_arrays(std::vector<uint32_t> arrays) { case_.arrays = std::move(arrays); }

  epd_group* group() { return group_; }
  epd_group_info Info() const;
  uint64_t epoch() const { return Info().epoch; }
  uint32_t rank() const { return rank_; }

  // Called in each of the last four with the buffer that takes the rows, once that is poisoned.
  std::function<void(const Bytes& rows)> on_poisoned;

  // Set: operations are tried for so long, and finished by another thread where they are pending.
  std::optional<int64_t> wait_ns;
  int num_pending = 0;
  int num_at_once = 0;

  std::vector<int32_t> token_counts;
  int32_t total_recv = -1;
  std::vector<uint8_t> plan;
  Bytes recv_tokens;
  std::vector<float> recv_weights;
  Bytes tokens;
  std::vector<float> weights;

 private:
  Result Try(epd_operation operation, const void* args);
  Result Scatter(bool dispatch, const RankData& data, const std::string& name);
  Result Gather(bool combine, const RankData& data, const std::string& name);

  epd_client* const client_;
  ExchangeCase case_;
  const uint32_t rank_;
  epd_group* group_ = nullptr;
  bool borrowed_ = false;
};

// Connects to `socket`; the client is null on error.
Result Connect(const std::string& socket, epd_client** client);

}  // namespace epd::testing
