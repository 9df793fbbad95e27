// A rank in a process of its own, forked from the test, that talks to the test line by line.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/client_c/harness/client_rank.h"
#include "tests/integration/client_c/harness/exchange_case.h"

namespace epd::testing {

// How long a rank may take for what a test asks of it. ThreadSanitizer makes it ten times as slow.
#if defined(__SANITIZE_THREAD__)
inline constexpr double kPatienceSeconds = 600;
#else
inline constexpr double kPatienceSeconds = 60;
#endif

// One end of a line-wise conversation.
class Link {
 public:
  Link(int in, int out) : in_(in), out_(out) {}
  void Say(const std::string& line) const;
  // The next line; "" at the end of the conversation or after `seconds`.
  std::string Hear(double seconds = kPatienceSeconds) const;
  int in() const { return in_; }
  int out() const { return out_; }

 private:
  const int in_;
  const int out_;
  mutable std::string buffer_;
};

class RankProcess {
 public:
  // Runs `body` in a child; what it returns is the child's last line. The test must have no
  // threads.
  explicit RankProcess(const std::function<std::string(Link&)>& body);
  ~RankProcess();  // SIGKILL if it still runs.

  pid_t pid() const { return pid_; }
  Link& link() { return *link_; }
  // Waits for the body's return and gives what it returned.
  std::string Finish(double seconds = kPatienceSeconds);
  void Kill();

 private:
  pid_t pid_ = -1;
  int fds_[2] = {-1, -1};
  std::unique_ptr<Link> link_;
};

// Everything a rank needs, connected and joined. `problem` is the first error's text.
struct JoinedRank {
  JoinedRank(const std::string& socket, const ExchangeCase& c, uint32_t rank,
             const JoinOptions& options = {});
  // With its part of the exchange, which whoever starts many ranks makes once.
  JoinedRank(const std::string& socket, const ExchangeCase& c, uint32_t rank,
             const JoinOptions& options, RankData its_data);
  ~JoinedRank();

  // `num_steps` of all five operations, then leaves. "" or what went wrong.
  std::string RunAndLeave(int num_steps);

  std::string problem;
  epd_client* client = nullptr;
  std::unique_ptr<ClientRank> rank;
  RankData data;

 private:
  void Join(const std::string& socket, const ExchangeCase& c, uint32_t number,
            const JoinOptions& options);
};

// Starts a process per rank that connects, joins and then runs `body`.
std::vector<std::unique_ptr<RankProcess>> StartRanks(
    const std::string& socket, const ExchangeCase& c,
    const std::function<std::string(JoinedRank&, Link&)>& body, const JoinOptions& options = {});

// ... with options of its own.
std::vector<std::unique_ptr<RankProcess>> StartRanks(
    const std::string& socket, const ExchangeCase& c,
    const std::function<std::string(JoinedRank&, Link&)>& body,
    const std::function<JoinOptions(uint32_t rank)>& options);

// Finishes all; their reports by rank.
std::vector<std::string> FinishAll(std::vector<std::unique_ptr<RankProcess>>& ranks,
                                   double seconds = kPatienceSeconds);

}  // namespace epd::testing
