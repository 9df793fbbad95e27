// What the row movements cost beside a memcpy of the same live bytes, one thread, one process.
// Bytes per second count live rows of rank 0, in every benchmark alike, so the ratios of the
// "bytes_per_second" columns are the ratios to memcpy.
#include <benchmark/benchmark.h>

#include <memory>

#include "kernels/prepare_output.h"
#include "tests/bench/kernels/exchange_fixture.h"

namespace epd {
namespace {

ExchangeSize SizeOf(const benchmark::State& state) {
  return {state.range(0), state.range(1), static_cast<std::int32_t>(state.range(2)),
          static_cast<std::int32_t>(state.range(3))};
}

// What the output memory is like when the measured call begins.
enum Memory { kWarm = 0, kFresh = 1, kPrepared = 2 };

void Fail(benchmark::State& state, const KernelError& error) {
  char text[256];
  FormatKernelError(error, text, sizeof(text));
  state.SkipWithError(text);
}

// Makes the output fresh outside the measured time, and prepares it inside.
void Renew(benchmark::State& state, Pages& pages) {
  if (state.range(4) == kWarm) return;
  state.PauseTiming();
  pages.Renew();
  state.ResumeTiming();
  if (state.range(4) == kPrepared) PrepareOutput(pages.data(), pages.size());
}

// All ranks' stages for a scatter of random tokens.
struct ScatterStages {
  explicit ScatterStages(const ExchangeFixture& fixture, const ExchangeSize& size) {
    tokens = std::make_unique<Pages>(size.num_tokens * fixture.RowBytes());
    weights.resize(size.num_tokens * size.top_k);
    for (int r = 0; r < size.num_ranks; ++r) {
      const RoutingPlanView& view = fixture.View(r);
      stages.push_back(std::make_unique<Pages>(ScatterStageBytes(
          {view.num_tokens, view.num_routes, size.num_ranks, fixture.RowBytes()})));
      refs.push_back({stages[r]->data(), stages[r]->size()});
      error = Stage(fixture, r);
      if (!error.ok()) return;
    }
  }
  KernelError Stage(const ExchangeFixture& fixture, int rank) {
    const RoutingPlanView& view = fixture.View(rank);
    return StageScatter({&view, tokens->data(), weights.data(), view.num_tokens, fixture.RowBytes(),
                         stages[rank]->data(), stages[rank]->size()});
  }
  std::unique_ptr<Pages> tokens;
  std::vector<float> weights;
  std::vector<std::unique_ptr<Pages>> stages;
  std::vector<StageRef> refs;
  KernelError error;
};

void BM_Memcpy(benchmark::State& state) {
  const ExchangeFixture fixture(SizeOf(state));
  const Pages from(fixture.PayloadBytes(0));
  Pages to(fixture.PayloadBytes(0));
  for (auto _ : state) {
    Renew(state, to);
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * fixture.PayloadBytes(0));
}

void BM_StageScatter(benchmark::State& state) {
  const ExchangeFixture fixture(SizeOf(state));
  ScatterStages stages(fixture, SizeOf(state));
  for (auto _ : state) {
    const KernelError error = stages.Stage(fixture, 0);
    if (!error.ok()) return Fail(state, error);
  }
  state.SetBytesProcessed(state.iterations() * fixture.PayloadBytes(0));
}

void BM_PullScatter(benchmark::State& state) {
  const ExchangeFixture fixture(SizeOf(state));
  const ScatterStages stages(fixture, SizeOf(state));
  Pages out(fixture.Capacity() * fixture.RowBytes());
  std::vector<float> weights(fixture.Capacity());
  PullScatterArgs args;
  args.plan = &fixture.View(0);
  args.sources = stages.refs.data();
  args.row_bytes = fixture.RowBytes();
  args.capacity = fixture.Capacity();
  args.recv_rows = out.data();
  args.recv_weights = weights.data();
  for (auto _ : state) {
    Renew(state, out);
    const KernelError error = PullScatter(args);
    if (!error.ok()) return Fail(state, error);
  }
  state.SetBytesProcessed(state.iterations() * fixture.PayloadBytes(0));
}

// All ranks' stages for a gather.
struct GatherStages {
  GatherStages(const ExchangeFixture& fixture, const ExchangeSize& size)
      : rows(fixture.Capacity() * fixture.RowBytes()) {
    for (int r = 0; r < size.num_ranks; ++r) {
      const std::uint64_t live = fixture.PayloadBytes(r) / fixture.RowBytes();
      stages.push_back(std::make_unique<Pages>(
          GatherStageBytes({static_cast<std::int64_t>(live), fixture.RowBytes(), false})));
      refs.push_back({stages[r]->data(), stages[r]->size()});
      error = Stage(fixture, r);
      if (!error.ok()) return;
    }
  }
  KernelError Stage(const ExchangeFixture& fixture, int rank) {
    return StageGather({&fixture.View(rank), rows.data(), nullptr, fixture.Capacity(),
                        fixture.RowBytes(), stages[rank]->data(), stages[rank]->size()});
  }
  Pages rows;
  std::vector<std::unique_ptr<Pages>> stages;
  std::vector<StageRef> refs;
  KernelError error;
};

void BM_StageGather(benchmark::State& state) {
  const ExchangeFixture fixture(SizeOf(state));
  GatherStages stages(fixture, SizeOf(state));
  for (auto _ : state) {
    const KernelError error = stages.Stage(fixture, 0);
    if (!error.ok()) return Fail(state, error);
  }
  state.SetBytesProcessed(state.iterations() * fixture.PayloadBytes(0));
}

void BM_PullGather(benchmark::State& state) {
  const ExchangeFixture fixture(SizeOf(state));
  const GatherStages stages(fixture, SizeOf(state));
  Pages out(state.range(0) * fixture.RowBytes());
  PullGatherArgs args;
  args.plan = &fixture.View(0);
  args.sources = stages.refs.data();
  args.dtype = DataType::kBfloat16;
  args.row_bytes = fixture.RowBytes();
  args.num_tokens = state.range(0);
  args.out = out.data();
  for (auto _ : state) {
    Renew(state, out);
    const KernelError error = PullGather(args);
    if (!error.ok()) return Fail(state, error);
  }
  state.SetBytesProcessed(state.iterations() * fixture.PayloadBytes(0));
}

void BM_BuildPlan(benchmark::State& state) {
  ExchangeFixture fixture(SizeOf(state));
  for (auto _ : state) {
    const KernelError error = fixture.BuildPlan(0);
    if (!error.ok()) return Fail(state, error);
  }
}

void BM_ViewPlan(benchmark::State& state) {
  ExchangeFixture fixture(SizeOf(state));
  for (auto _ : state) {
    const KernelError error = fixture.ViewPlan(0);
    if (!error.ok()) return Fail(state, error);
  }
}

// tokens, hidden, top_k, ranks, output memory
void AddSizes(benchmark::internal::Benchmark* benchmark, Memory memory) {
  benchmark->ArgNames({"T", "H", "K", "R", "memory"});
  benchmark->Args({8, 2048, 4, 4, memory});
  benchmark->Args({512, 2048, 4, 4, memory});
  benchmark->Args({4096, 7168, 8, 4, memory});
  // Huge pages come from memory that the host may never have backed; that is paid once.
  benchmark->UseRealTime()->MinWarmUpTime(0.1);
}
void WarmSizes(benchmark::internal::Benchmark* benchmark) { AddSizes(benchmark, kWarm); }
void Sizes(benchmark::internal::Benchmark* benchmark) {
  for (const Memory memory : {kWarm, kFresh, kPrepared}) AddSizes(benchmark, memory);
}

BENCHMARK(BM_BuildPlan)->Apply(WarmSizes);
BENCHMARK(BM_ViewPlan)->Apply(WarmSizes);
BENCHMARK(BM_Memcpy)->Apply(Sizes);
BENCHMARK(BM_StageScatter)->Apply(WarmSizes);
BENCHMARK(BM_PullScatter)->Apply(Sizes);
BENCHMARK(BM_StageGather)->Apply(WarmSizes);
BENCHMARK(BM_PullGather)->Apply(Sizes);

}  // namespace
}  // namespace epd
