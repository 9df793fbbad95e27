#include "tests/bench/bench_rank.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>

#include "tests/bench/barrier.h"

namespace epd::bench {
namespace {

constexpr size_t kAlignment = 64;

void ReadFile(const std::string& path, void* into, size_t bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes))) {
    throw std::runtime_error("cannot read " + std::to_string(bytes) + " bytes of " + path);
  }
}

// "load FOLDER R T H K E C"
Problem ReadProblem(std::istringstream& words, int rank) {
  std::string folder;
  Problem problem;
  problem.rank = rank;
  words >> folder >> problem.num_ranks >> problem.num_tokens >> problem.hidden >> problem.top_k >>
      problem.num_experts >> problem.recv_capacity;
  if (!words) throw std::runtime_error("load: expected FOLDER R T H K E C");
  const size_t routes = static_cast<size_t>(problem.num_tokens * problem.top_k);
  for (int source = 0; source < problem.num_ranks; ++source) {
    problem.routing.emplace_back(routes);
    ReadFile(folder + "/topk_idx." + std::to_string(source), problem.routing.back().data(),
             routes * sizeof(int32_t));
  }
  problem.tokens = Rows(static_cast<size_t>(problem.num_tokens * problem.hidden));
  ReadFile(folder + "/tokens." + std::to_string(rank), problem.tokens.data(),
           problem.tokens.size() * sizeof(Row16));
  problem.topk_weights.resize(routes);
  ReadFile(folder + "/topk_weights." + std::to_string(rank), problem.topk_weights.data(),
           routes * sizeof(float));
  return problem;
}

// The file beside the driver's socket.
bench_barrier* OpenBarrier(const std::string& socket_path) {
  const std::string path = socket_path + ".barrier";
  bench_barrier* const barrier = bench_barrier_open(path.c_str());
  if (barrier != nullptr) return barrier;
  throw std::runtime_error("cannot map " + path + ": " + std::strerror(errno));
}

std::string RunTimed(Contender& contender, bench_barrier* barrier, std::istringstream& words) {
  std::string operation;
  int iterations = 0;
  words >> operation >> iterations;
  std::string times = "ok";
  for (int i = 0; i < iterations; ++i) {
    contender.GetReady(operation);
    bench_barrier_wait(barrier);
    const auto begin = std::chrono::steady_clock::now();
    contender.Run(operation);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
    times += ' ';
    times += std::to_string(took.count());
  }
  return times;
}

void Dump(Contender& contender, std::istringstream& words, int rank) {
  std::string operation;
  std::string path;
  words >> operation >> path;
  const std::span<const Row16> result = contender.Result(operation);
  std::ofstream file(path + "." + std::to_string(rank), std::ios::binary);
  file.write(reinterpret_cast<const char*>(result.data()),
             static_cast<std::streamsize>(result.size_bytes()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

std::string Answer(Contender& contender, bench_barrier* barrier, const std::string& line,
                   int rank) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "load") {
    contender.Load(ReadProblem(words, rank));
  } else if (command == "run") {
    return RunTimed(contender, barrier, words);
  } else if (command == "dump") {
    Dump(contender, words, rank);
  } else if (command == "unload") {
    contender.Unload();
  } else if (command == "versions") {
    return "ok " + contender.Versions();
  } else {
    return "ok " + contender.Other(line);
  }
  return "ok";
}

int ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot connect to the driver at " + path + ": " +
                             std::strerror(errno));
  }
  return fd;
}

}  // namespace

Rows::Rows(size_t num_values) : size_(num_values) {
  const size_t bytes = (num_values * sizeof(Row16) + kAlignment - 1) / kAlignment * kAlignment;
  data_ = static_cast<Row16*>(std::aligned_alloc(kAlignment, std::max(bytes, kAlignment)));
  if (data_ == nullptr) throw std::bad_alloc();
}

Rows& Rows::operator=(Rows&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void Rows::Poison() { std::fill_n(data_, size_, Row16{0xFFFF}); }

std::vector<int> Problem::SlotExperts(int target) const {
  std::vector<int> experts;
  for (const auto& source : routing) {
    for (const int32_t expert : source) {
      if (expert / experts_per_rank() == target) experts.push_back(expert);
    }
  }
  std::sort(experts.begin(), experts.end());
  return experts;
}

Rows ScaledByExpert(const Problem& problem, const Row16* received) {
  const auto hidden = static_cast<size_t>(problem.hidden);
  const std::vector<int> experts = problem.SlotExperts(problem.rank);
  Rows scaled(static_cast<size_t>(problem.recv_capacity) * hidden);
  std::fill_n(scaled.data(), scaled.size(), Row16{0});
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    const float scale = 1 + static_cast<float>(experts[slot] % 8) / 8;
    for (size_t i = slot * hidden; i < (slot + 1) * hidden; ++i) {
      scaled.data()[i] = ToBf16(FromBf16(received[i]) * scale);
    }
  }
  return scaled;
}

void TakeACore(int rank, int num_ranks) {
  static const cpu_set_t allowed = [] {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    return cores;
  }();
  if (CPU_COUNT(&allowed) == 0) return;  // More processors than such a set has room for.
  cpu_set_t wanted = allowed;
  if (num_ranks <= CPU_COUNT(&allowed)) {
    int core = -1;
    for (int before = -1; before < rank;) {
      if (CPU_ISSET(++core, &allowed)) ++before;
    }
    CPU_ZERO(&wanted);
    CPU_SET(core, &wanted);
  }
  if (sched_setaffinity(0, sizeof wanted, &wanted) != 0) {
    throw std::runtime_error(std::string("sched_setaffinity: ") + std::strerror(errno));
  }
}

std::string Contender::Other(const std::string& line) {
  throw std::runtime_error("unknown command '" + line + "'");
}

int ServeDriver(const std::string& socket_path, int rank, Contender& contender) {
  const int fd = ConnectTo(socket_path);
  bench_barrier* const barrier = OpenBarrier(socket_path);
  FILE* driver = fdopen(fd, "r+");
  std::fprintf(driver, "rank %d %d\n", rank, static_cast<int>(getpid()));
  std::fflush(driver);
  std::string line;
  for (int c; (c = std::fgetc(driver)) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    std::string answer;
    try {
      answer = Answer(contender, barrier, line, rank);
    } catch (const std::exception& error) {
      answer = std::string("error ") + error.what();
      std::replace(answer.begin(), answer.end(), '\n', ' ');
    }
    std::fprintf(driver, "%s\n", answer.c_str());
    std::fflush(driver);
    line.clear();
  }
  std::fclose(driver);
  return 0;
}

}  // namespace epd::bench
