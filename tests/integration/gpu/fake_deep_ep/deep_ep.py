"""A deep_ep without a GPU: the calls that tests/gpu makes, with the arguments and the results that DeepEP documents, over gloo.

It puts what they need of torch.cuda on the CPU: events that can be read once somebody has waited, and graphs of the calls here.
EPD_FAKE_DEEP_EP: "wrong" makes sums that are not right, "fails" lets rank 1 raise, "graph" replays nothing.
"""

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist

__version__ = "fake"
topk_idx_t = torch.int64
_FAULT = os.environ.get("EPD_FAKE_DEEP_EP", "")
if shapes := sys.modules.get("bench_shapes"):
    shapes.WARM, shapes.RUNS = (
        1,
        2,
    )  # What comes back is right or wrong at once; how fast is not asked here.
_captured = None  # the graph that is being captured


def _do(step):
    """What a stream would be given: now, and in each replay."""
    step()
    if _captured is not None:
        _captured.steps.append(step)


class _Event:
    _recorded = []

    def __init__(self, enable_timing=False):
        assert enable_timing
        self.at, self.reached = None, False

    def record(self):
        self.at, self.reached = time.perf_counter(), False
        _Event._recorded.append(self)

    def elapsed_time(self, end):
        assert self.reached and end.reached, "nobody has waited for the events"
        return 1e3 * (end.at - self.at)


def _synchronize():
    for event in _Event._recorded:
        event.reached = True
    _Event._recorded.clear()


class _Graph:
    def __init__(self):
        self.steps = []

    def replay(self):
        for step in self.steps if _FAULT != "graph" else ():
            step()


@contextlib.contextmanager
def _capture(graph, capture_error_mode="global"):
    global _captured
    assert capture_error_mode in ("global", "thread_local", "relaxed")
    _captured = graph
    yield
    _captured = None


_init = dist.init_process_group
dist.init_process_group = lambda backend, **arguments: _init("gloo", **arguments)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: int(os.environ["EPD_FAKE_GPUS"])
torch.cuda.get_device_name = lambda device: f"fake {device}"
torch.cuda.set_device = lambda device: None
torch.cuda.synchronize = _synchronize
torch.cuda.Event = _Event
torch.cuda.CUDAGraph = _Graph
torch.cuda.graph = _capture
torch.Tensor.cuda = lambda self: self


class EventOverlap:
    pass


class Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes, num_ranks):
        assert hidden_bytes > 0 and num_ranks > 0
        return 1 << 20


class Buffer:
    def __init__(
        self,
        group,
        num_nvl_bytes=0,
        num_rdma_bytes=0,
        low_latency_mode=False,
        num_qps_per_rank=24,
    ):
        assert (num_rdma_bytes if low_latency_mode else num_nvl_bytes) > 0
        assert num_qps_per_rank > 0
        self.group, self.low_latency = group, low_latency_mode
        self.rank, self.ranks = group.rank(), group.size()

    @staticmethod
    def get_dispatch_config(num_ranks):
        assert num_ranks in (2, 4, 8), f"Unsupported number of EP ranks: {num_ranks}"
        return Config()

    get_combine_config = get_dispatch_config

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
    ):
        assert num_experts % num_ranks == 0
        return 2 * num_max_dispatch_tokens_per_rank * hidden * num_experts

    def _gather(self, mine):
        everybodys = [None] * self.ranks
        dist.all_gather_object(everybodys, mine, group=self.group)
        return everybodys

    def _sum_home(self, rows, sources, out):
        """Each row home to the token that it is of, with a weight."""
        sums = torch.zeros(out.shape)
        for theirs, of_whom in self._gather((rows, sources)):
            for row, (rank, token, weight) in zip(theirs, of_whom, strict=True):
                if rank == self.rank:
                    sums[token] += weight * row.float()
        out.copy_(sums + (1 if _FAULT == "wrong" else 0))

    def get_dispatch_layout(self, topk_idx, num_experts):
        assert topk_idx.dtype == topk_idx_t and not self.low_latency
        owner = topk_idx // (num_experts // self.ranks)
        is_in_rank = torch.stack([(owner == r).any(dim=1) for r in range(self.ranks)], dim=1)
        per_expert = torch.bincount(topk_idx.reshape(-1), minlength=num_experts).int()
        return is_in_rank.sum(dim=0).int(), None, per_expert, is_in_rank, EventOverlap()

    def dispatch(
        self,
        x,
        handle=None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
    ):
        assert x.dtype == torch.bfloat16 and handle is None and num_tokens_per_rdma_rank is None
        assert topk_weights.dtype == torch.float32 and topk_weights.shape == topk_idx.shape
        assert torch.equal(is_token_in_rank.sum(dim=0).int(), num_tokens_per_rank)
        assert _captured is None, "the host waits for the counts"
        if _FAULT == "fails" and self.rank == 1:
            raise RuntimeError("the fake fails as it was told")
        local = len(num_tokens_per_expert) // self.ranks
        rows, experts, sources = [], [], []
        for rank, (theirs, idx) in enumerate(self._gather((x, topk_idx))):
            for token in range(len(theirs)):
                here = torch.where(idx[token] // local == self.rank, idx[token] % local, -1)
                if (here >= 0).any():
                    rows.append(theirs[token])
                    experts.append(here)
                    sources.append((rank, token, 1.0))
        counts = torch.stack(experts)
        per_expert = [int((counts == e).sum()) for e in range(local)]
        handle = (sources, len(x))
        return torch.stack(rows), counts, topk_weights, per_expert, handle, EventOverlap()

    def combine(self, x, handle, topk_weights=None):
        sources, count = handle
        assert x.dtype == torch.bfloat16 and len(x) == len(sources) and topk_weights is None
        out = torch.empty((count, x.shape[1]), dtype=x.dtype)
        self._sum_home(x, sources, out)
        return out, None, EventOverlap()

    def low_latency_dispatch(
        self, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, use_fp8=True
    ):
        assert self.low_latency and not use_fp8 and topk_idx.dtype == topk_idx_t
        assert len(x) <= num_max_dispatch_tokens_per_rank
        local = num_experts // self.ranks
        slots = num_max_dispatch_tokens_per_rank * self.ranks
        recv = torch.full((local, slots, x.shape[1]), float("nan"), dtype=x.dtype)
        counts, sources = torch.zeros(local, dtype=torch.int32), {}

        def step():
            counts.zero_()
            sources.clear()
            for rank, (theirs, idx) in enumerate(self._gather((x, topk_idx))):
                for token in range(len(theirs)):
                    for k, expert in enumerate(idx[token].tolist()):
                        if expert // local == self.rank:
                            slot = (expert % local, int(counts[expert % local]))
                            recv[slot] = theirs[token]
                            sources[slot] = (rank, token, k)
                            counts[expert % local] += 1

        _do(step)
        return recv, counts, sources, EventOverlap(), None

    def low_latency_combine(self, x, topk_idx, topk_weights, handle):
        assert x.dtype == torch.bfloat16 and topk_weights.dtype == torch.float32
        out = torch.empty((len(topk_idx), x.shape[2]), dtype=x.dtype)

        def step():
            rows = [x[slot] for slot in handle]
            weights = self._gather(topk_weights)
            of_whom = [(r, token, float(weights[r][token, k])) for r, token, k in handle.values()]
            self._sum_home(rows, of_whom, out)

        _do(step)
        return out, EventOverlap(), None
