"""One rank of DeepEP's benchmark, a process per GPU; started by deepep_bench.py. Prints one JSON object.

Arguments: rank, ranks, "normal" or "low_latency", what the shapes' sizes are divided by, a file by which the ranks meet, and
the shape's name. Gives microseconds, run by run, and whether the results were right.

"normal": the calls that are made for training and prefill. A row goes once to each rank that has an expert of it; in place of
the experts it is multiplied by how many these are, which is timed in forward and in the chain alone. The host learns in each
dispatch how many rows come, so there is no graph of them. "low_latency": those made for decoding, with rows in bfloat16;
their chain is also a replayed graph.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import bench_shapes
import deep_ep
import torch
import torch.distributed as dist
from bench_shapes import CHAIN, MARKED, RUNS, TOP_K, WARM

# Events of a pair: before and behind dispatch, before and behind combine.
_PLACES = 4


class _Exchange:
    """What is the same of both kinds of calls."""

    def __init__(self, problem: bench_shapes.Problem, rank: int) -> None:
        tokens, idx = problem.of_rank(rank)
        self.workload = problem.workload
        self.tokens = torch.from_numpy(tokens).to(torch.bfloat16).cuda()
        index = getattr(deep_ep, "topk_idx_t", torch.int64)
        self.idx = torch.from_numpy(idx).to(index).cuda()
        self.weights = torch.ones(idx.shape, dtype=torch.float32).cuda()

    def dispatch(self, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The rows, and what combine wants to know beside them."""
        raise NotImplementedError

    def experts(self, rows: torch.Tensor, way_back: Any) -> torch.Tensor:
        """What combine is given for the rows, so that TOP_K times the tokens come back."""
        del way_back
        return rows

    def combine(self, rows: torch.Tensor, way_back: Any) -> torch.Tensor:
        raise NotImplementedError

    def live_rows(self, rows: torch.Tensor, way_back: Any) -> int:
        raise NotImplementedError

    def pair(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, way_back = self.dispatch(tokens)
        return self.combine(self.experts(rows, way_back), way_back)

    def chain(self, tokens: torch.Tensor) -> torch.Tensor:
        for _ in range(CHAIN):
            tokens = self.pair(tokens)
        return tokens


class _Normal(_Exchange):
    a_row_per = "token and rank"

    def __init__(self, group: Any, problem: bench_shapes.Problem, rank: int) -> None:
        super().__init__(problem, rank)
        ranks, row_bytes = self.workload.ranks, self.workload.row_bytes()
        configs = (
            deep_ep.Buffer.get_dispatch_config(ranks),
            deep_ep.Buffer.get_combine_config(ranks),
        )
        bytes_ = max(one.get_nvl_buffer_size_hint(row_bytes, ranks) for one in configs)
        self._buffer = deep_ep.Buffer(group, bytes_)
        self.expected = problem.tokens_to(rank)

    def dispatch(self, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        per_rank, per_rdma_rank, per_expert, is_in_rank, _ = self._buffer.get_dispatch_layout(
            self.idx, self.workload.num_experts
        )
        rows, experts, _, _, handle, _ = self._buffer.dispatch(
            tokens,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=self.idx,
            topk_weights=self.weights,
        )
        return rows, (handle, experts)

    def experts(self, rows: torch.Tensor, way_back: Any) -> torch.Tensor:
        return rows * (way_back[1] >= 0).sum(dim=1, keepdim=True).to(rows.dtype)

    def combine(self, rows: torch.Tensor, way_back: Any) -> torch.Tensor:
        return self._buffer.combine(rows, way_back[0])[0]

    def live_rows(self, rows: torch.Tensor, way_back: Any) -> int:
        return len(rows)


class _LowLatency(_Exchange):
    a_row_per = "token and expert"

    def __init__(self, group: Any, problem: bench_shapes.Problem, rank: int) -> None:
        super().__init__(problem, rank)
        w = self.workload
        bytes_ = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            w.tokens_per_rank, w.hidden, w.ranks, w.num_experts
        )
        self._buffer = deep_ep.Buffer(
            group,
            num_rdma_bytes=bytes_,
            low_latency_mode=True,
            num_qps_per_rank=bench_shapes.LOCAL_EXPERTS,
        )
        self.expected = int((problem.idx // bench_shapes.LOCAL_EXPERTS == rank).sum())

    def dispatch(self, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        w = self.workload
        rows, counts, handle, _, _ = self._buffer.low_latency_dispatch(
            tokens, self.idx, w.tokens_per_rank, w.num_experts, use_fp8=False
        )
        return rows, (handle, counts)

    def combine(self, rows: torch.Tensor, way_back: Any) -> torch.Tensor:
        return self._buffer.low_latency_combine(rows, self.idx, self.weights, way_back[0])[0]

    def live_rows(self, rows: torch.Tensor, way_back: Any) -> int:
        return int(way_back[1].sum())


_KINDS = {"normal": _Normal, "low_latency": _LowLatency}


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _runs(step: Callable[[], list[float]]) -> list[float]:
    """Of a step that gives microseconds, which all ranks begin together."""
    taken = []
    for run in range(WARM + RUNS):
        dist.barrier()
        torch.cuda.synchronize()
        microseconds = step()
        if run >= WARM:
            taken += microseconds
    return taken


def _by_wall(*steps: Callable[[], Any]) -> list[float]:
    """Of steps whose results are awaited, one after another."""
    taken = []
    for step in steps:
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append(1e6 * (time.perf_counter() - begin))
    return taken


def _by_events(step: Callable[[], Any]) -> list[float]:
    begin = _event()
    step()
    end = _event()
    torch.cuda.synchronize()
    return [1e3 * begin.elapsed_time(end)]


def _parts_by_wall(exchange: _Exchange) -> dict[str, list[float]]:
    held: list[Any] = []

    def dispatch() -> None:
        held[:] = exchange.dispatch(exchange.tokens)

    def experts() -> None:
        held[0] = exchange.experts(*held)

    taken = _runs(lambda: _by_wall(dispatch, experts, lambda: exchange.combine(*held)))
    return {"dispatch": taken[0::3], "combine": taken[2::3]}


def _parts_by_events(exchange: _Exchange) -> dict[str, list[float]]:
    """In a chain of MARKED pairs, whose first does not count."""

    def chain() -> list[float]:
        tokens, events = exchange.tokens, []
        for _ in range(MARKED):
            events.append(_event())
            rows, way_back = exchange.dispatch(tokens)
            events.append(_event())
            rows = exchange.experts(rows, way_back)
            events.append(_event())
            tokens = exchange.combine(rows, way_back)
            events.append(_event())
        torch.cuda.synchronize()
        return [
            1e3 * events[at].elapsed_time(events[at + 1])
            for at in range(_PLACES, MARKED * _PLACES, 2)
        ]

    taken = _runs(chain)
    dispatch, combine = taken[0::2], taken[1::2]
    pair = [a + b for a, b in zip(dispatch, combine, strict=True)]
    return {"dispatch": dispatch, "combine": combine, "pair": pair}


class _Graph:
    """A chain that is captured once; its tokens are copied in before a replay."""

    def __init__(self, exchange: _Exchange) -> None:
        self._tokens = exchange.tokens.clone()
        self._graph = torch.cuda.CUDAGraph()
        exchange.chain(self._tokens)
        torch.cuda.synchronize()
        # What NCCL's own threads ask the driver meanwhile is none of the capture's.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._out = exchange.chain(self._tokens)

    def replay(self) -> None:
        self._graph.replay()

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self._tokens.copy_(tokens)
        self.replay()
        return self._out


def _is(got: torch.Tensor, tokens: torch.Tensor, pairs: int) -> bool:
    return bool(torch.equal(got.float(), tokens.float() * float(TOP_K**pairs)))


def _right(exchange: _Exchange) -> bool:
    rows, way_back = exchange.dispatch(exchange.tokens)
    came = exchange.live_rows(rows, way_back)
    out = exchange.combine(exchange.experts(rows, way_back), way_back)
    return came == exchange.expected and _is(out, exchange.tokens, 1)


def _measure(exchange: _Exchange) -> dict[str, Any]:
    """Times by "CLOCK WHAT" of this rank, and what it has seen."""
    oracle = {"before": _right(exchange)}
    tokens = exchange.tokens
    chained = {"chained pair period": lambda: exchange.chain(tokens)}
    if isinstance(exchange, _LowLatency):
        graph = _Graph(exchange)
        # Of other tokens than those that it was captured with.
        oracle["graph before"] = _is(graph(tokens.neg()), tokens.neg(), CHAIN)
        chained["chained pair period in graph"] = graph.replay
    oracle["chain"] = _is(exchange.chain(tokens), tokens, CHAIN)
    times = {f"wall {what}": taken for what, taken in _parts_by_wall(exchange).items()}
    times["wall forward"] = _runs(lambda: _by_wall(lambda: exchange.pair(tokens)))
    for what, taken in _parts_by_events(exchange).items():
        times[f"event {what}"] = taken
    for what, chain in chained.items():
        for clock, by in (("wall", _by_wall), ("event", _by_events)):
            taken = _runs(lambda by=by, chain=chain: by(chain))
            times[f"{clock} {what}"] = [one / CHAIN for one in taken]
    if isinstance(exchange, _LowLatency):
        oracle["graph after"] = _is(graph(tokens), tokens, CHAIN)
    rows, way_back = exchange.dispatch(tokens)
    received = {"live_rows": exchange.live_rows(rows, way_back), "capacity": rows.numel()}
    received["capacity"] //= exchange.workload.hidden
    exchange.combine(exchange.experts(rows, way_back), way_back)
    oracle["after"] = _right(exchange)
    return {
        "times": times,
        "oracle": oracle,
        "received": received | {"a_row_per": exchange.a_row_per},
    }


def main() -> int:
    rank, ranks, kind, divisor, meet, shape = sys.argv[1:]
    torch.cuda.set_device(int(rank))
    dist.init_process_group(
        "nccl", init_method=f"file://{meet}", rank=int(rank), world_size=int(ranks)
    )
    group = dist.new_group(list(range(int(ranks))))
    problem = bench_shapes.problem(shape, int(ranks), int(divisor))
    measured = _measure(_KINDS[kind](group, problem, int(rank)))
    dist.barrier()
    print(json.dumps(measured), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
