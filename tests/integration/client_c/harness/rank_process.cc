#include "tests/integration/client_c/harness/rank_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace epd::testing {

void Link::Say(const std::string& line) const {
  std::string flat = line;
  std::replace(flat.begin(), flat.end(), '\n', ' ');
  flat += '\n';
  if (write(out_, flat.data(), flat.size()) != static_cast<ssize_t>(flat.size()))
    std::perror("Link::Say");
}

std::string Link::Hear(double seconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      const std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const std::chrono::duration<double, std::milli> left = until - std::chrono::steady_clock::now();
    pollfd poller = {in_, POLLIN, 0};
    if (left.count() <= 0 || poll(&poller, 1, static_cast<int>(left.count()) + 1) < 0) return "";
    if (poller.revents == 0) continue;
    char chunk[4096];
    const ssize_t got = read(in_, chunk, sizeof chunk);
    if (got <= 0) return "";
    buffer_.append(chunk, static_cast<size_t>(got));
  }
}

RankProcess::RankProcess(const std::function<std::string(Link&)>& body) {
  signal(SIGPIPE, SIG_IGN);  // A rank that has ended is told things, too.
  int to_child[2];
  int to_test[2];
  if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(to_test, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_child[1]);
    close(to_test[0]);
    Link link(to_child[0], to_test[1]);
    link.Say("report:" + body(link));
    _exit(0);
  }
  close(to_child[0]);
  close(to_test[1]);
  fds_[0] = to_test[0];
  fds_[1] = to_child[1];
  link_ = std::make_unique<Link>(fds_[0], fds_[1]);
}

RankProcess::~RankProcess() {
  Kill();
  close(fds_[0]);
  close(fds_[1]);
}

void RankProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string RankProcess::Finish(double seconds) {
  const std::string line = link_->Hear(seconds);
  const std::string head = "report:";
  if (line.compare(0, head.size(), head) != 0)
    return "the rank did not finish; it said '" + line + "'";
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return line.substr(head.size());
}

JoinedRank::JoinedRank(const std::string& socket, const ExchangeCase& c, uint32_t number,
                       const JoinOptions& options) {
  Join(socket, c, number, options);
  if (problem.empty()) data = MakeExchange(c)[number];  // Of a case that may be.
}

JoinedRank::JoinedRank(const std::string& socket, const ExchangeCase& c, uint32_t number,
                       const JoinOptions& options, RankData its_data)
    : data(std::move(its_data)) {
  Join(socket, c, number, options);
}

void JoinedRank::Join(const std::string& socket, const ExchangeCase& c, uint32_t number,
                      const JoinOptions& options) {
  const Result connected = Connect(socket, &client);
  problem = connected.message;
  if (!connected.ok()) return;
  rank = std::make_unique<ClientRank>(client, c, number);
  problem = rank->Join(options).message;
}

JoinedRank::~JoinedRank() {
  rank.reset();
  epd_disconnect(client);
}

std::string JoinedRank::RunAndLeave(int num_steps) {
  for (int step = 0; step < num_steps; ++step) {
    const std::string wrong = rank->RunAndCompare(data);
    if (!wrong.empty()) return "step " + std::to_string(step) + ": " + wrong;
  }
  return rank->Leave().message;
}

std::vector<std::unique_ptr<RankProcess>> StartRanks(
    const std::string& socket, const ExchangeCase& c,
    const std::function<std::string(JoinedRank&, Link&)>& body, const JoinOptions& options) {
  return StartRanks(socket, c, body, [&](uint32_t) { return options; });
}

std::vector<std::unique_ptr<RankProcess>> StartRanks(
    const std::string& socket, const ExchangeCase& c,
    const std::function<std::string(JoinedRank&, Link&)>& body,
    const std::function<JoinOptions(uint32_t rank)>& options) {
  std::vector<std::unique_ptr<RankProcess>> ranks;
  std::vector<RankData> data = MakeExchange(c);
  for (uint32_t rank = 0; rank < c.num_ranks; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>([&](Link& link) -> std::string {
      JoinedRank joined(socket, c, rank, options(rank), std::move(data[rank]));
      return joined.problem.empty() ? body(joined, link) : joined.problem;
    }));
  }
  return ranks;
}

std::vector<std::string> FinishAll(std::vector<std::unique_ptr<RankProcess>>& ranks,
                                   double seconds) {
  std::vector<std::string> reports;
  for (const auto& rank : ranks) reports.push_back(rank->Finish(seconds));
  return reports;
}

}  // namespace epd::testing
