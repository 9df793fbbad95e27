"""dispatch and combine through epd.jax on all of a machine's GPUs, forward and backward, against ragged_all_to_all.

Started by api_ranks.py; prints one JSON object with a record (bench_record.py) for each shape and implementation. One
process, a rank per GPU; bfloat16, top-8, zones unpadded. Arguments: what the two shapes' sizes are divided by (1; more where
it is only tried), event_call.so, and the command of machine.peers().

Two clocks. "wall": a call with its results awaited, as a program sees it, and the period of a dispatch and combine in a
chain of them inside one program, which is the device's own time once the chain is longer than what it takes to start it.
"event": from an event in XLA's stream before a dispatch, a combine or both to one behind (event_marks.py), with a rank's waiting
for others in it. The events stand in an unrolled chain, whose first pair is left out: before it ranks start at different times.
Where XLA takes calls into command buffers a chain is a replayed graph, and events are nodes of it; "in_graph" says whether
they were. What comes back of tokens that no expert has changed is top-8 times the tokens, exactly in bfloat16, and of a chain so
often: that is looked at before and after everything that is timed, and of each chain.
"""

import dataclasses
import functools
import json
import os
import pathlib
import sys
import time

import bench_shapes
import epd.jax as ep
import event_marks
import jax
import jax.numpy as jnp
import machine
import numpy as np
from api_exchanges import Exchange, through_epd, through_xla
from bench_record import Measured, Place, Workload, expert_rows, record, row, slowest
from bench_shapes import CHAIN, LOCAL_EXPERTS, MARKED, TOP_K
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Places in a pair, and between which of them its parts stand.
_PLACES = 3
_PARTS = {"dispatch": (0, 1), "combine": (1, 2), "pair": (0, 2)}
# What else than the rows' way is in the times.
_OURS = "a routing plan in each dispatch, copies between the program's buffers and staging"
_IN_TIME = {
    "cpu": _OURS,
    "cuda": f"{_OURS}, zeros in what of a receive buffer gets no row",
    "nccl_ep": f"{_OURS}, zeros in what of a receive buffer gets no row; of each dispatch's plan a read to the host, one "
    "ncclEpUpdateHandle, which its combine shares, and a comparison of NCCL EP's layout with it",
    "ragged_all_to_all": "a sort by expert and an exchange of counts in each dispatch, zeros in all of a receive buffer, "
    "sums by a scatter in float32; no weights go along",
}


def _times(step, *arguments) -> list[float]:
    """Microseconds of single calls, results awaited."""
    taken = []
    for run in range(bench_shapes.WARM + bench_shapes.RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        if run >= bench_shapes.WARM:
            taken.append(1e6 * (time.perf_counter() - begin))
    return taken


def _chain(step):
    """CHAIN pairs, each behind the one before, in one program."""

    def chained(tokens, idx):
        return jax.lax.scan(lambda t, _: (step(t, idx), None), tokens, length=CHAIN)[0]

    return chained


def _right(step, tokens, idx, pairs: int = 1) -> bool:
    got = np.asarray(step(tokens, idx), np.float32)
    return bool(np.array_equal(got, np.asarray(tokens, np.float32) * TOP_K**pairs))


class _Events:
    """Times by the devices' clocks."""

    def __init__(self, marks: event_marks.EventMarks, mesh: Mesh) -> None:
        self._marks, self._mesh = marks, mesh

    def measure(self, exchange: Exchange, tokens, idx) -> tuple[list[dict], dict[str, bool]]:
        """Rows, of each run the pairs behind the first, of each pair the slowest rank; and whether results were right."""
        captured = self._marks.captured()
        program = jax.jit(self._marked(exchange))
        before = _right(program, tokens, idx, MARKED)
        taken: dict[str, list[float]] = {part: [] for part in _PARTS}
        for run in range(bench_shapes.WARM + bench_shapes.RUNS):
            jax.block_until_ready(program(tokens, idx))
            for part, times in taken.items() if run >= bench_shapes.WARM else ():
                times.extend(self._of_pairs(*_PARTS[part]))
        about = {"clock": "event", "in_graph": self._marks.captured() > captured}
        rows = [row(part, times, **about) for part, times in taken.items()]
        after = _right(program, tokens, idx, MARKED)
        return rows, {"before events": before, "after events": after}

    def _marked(self, exchange: Exchange):
        """MARKED pairs behind each other, each with an event before, between and behind."""
        mark = functools.partial(self._marks.mark, self._mesh)

        def marked(tokens, idx):
            for first in range(0, MARKED * _PLACES, _PLACES):
                tokens, idx = mark(first, tokens, idx)
                recv, way_back = exchange.dispatch(tokens, idx)
                (recv,) = mark(first + 1, recv)
                (tokens,) = mark(first + 2, exchange.combine(recv, way_back))
            return tokens

        return marked

    def _of_pairs(self, start: int, end: int) -> list[float]:
        first = range(_PLACES, MARKED * _PLACES, _PLACES)
        elapsed = self._marks.elapsed_us
        ranks = range(self._mesh.size)
        return slowest([[elapsed(r, at + start, at + end) for at in first] for r in ranks])


def _by_wall(exchange: Exchange, tokens, idx) -> tuple[list[dict], dict[str, bool]]:
    """Dispatch, combine, both, with their backward, in a chain; and whether the chain's results were right."""
    chained = jax.jit(_chain(exchange.pair))
    dispatch, combine = jax.jit(exchange.dispatch), jax.jit(exchange.combine)
    both = jax.jit(jax.grad(lambda t, i: (exchange.pair(t, i).astype(jnp.float32) ** 2).sum()))
    period = [taken / CHAIN for taken in _times(chained, tokens, idx)]
    rows = [
        row("dispatch", _times(dispatch, tokens, idx)),
        row("combine", _times(combine, *dispatch(tokens, idx))),
        row("forward", _times(jax.jit(exchange.pair), tokens, idx)),
        row("forward_backward", _times(both, tokens, idx)),
        row("chained pair period", period, pairs=CHAIN),
    ]
    return rows, {"chain": _right(chained, tokens, idx, CHAIN)}


def _place(devices: list[jax.Device], peers: dict) -> Place:
    topology = {"nodes": 1, "ranks": len(devices), "device": devices[0].device_kind}
    return Place(
        topology=topology | peers,
        runtime={
            "jax": jax.__version__,
            "platform": devices[0].platform,
            "platform_version": devices[0].client.platform_version,
            "command_buffers": os.environ.get("EPD_COMMAND_BUFFERS", ""),
        },
        provenance=machine.provenance(),
    )


def _made_events(mesh: Mesh, library: str) -> tuple[_Events | None, str]:
    """Or why there are none."""
    if mesh.devices.flat[0].platform not in ("gpu", "cuda"):
        return None, "no events in a CPU's streams"
    if not library:
        return None, "no event_call.so"
    try:
        marks = event_marks.EventMarks(pathlib.Path(library), mesh.size, MARKED * _PLACES)
    except (OSError, RuntimeError) as error:
        return None, str(error)
    return _Events(marks, mesh), ""


@dataclasses.dataclass(frozen=True)
class _About:
    """What all records say: of epd, and of where it ran."""

    ours: dict
    place: Place


class _Bench:
    """What is the same of all shapes."""

    def __init__(self, mesh: Mesh, group: ep.Group, about: _About, library: str) -> None:
        self._mesh, self._group, self._about = mesh, group, about
        self._events, self._no_events = _made_events(mesh, library)

    def _measured(self, exchange: Exchange, workload: Workload, tokens, idx) -> Measured:
        forward = jax.jit(exchange.pair)
        oracle, no_events = {"before": _right(forward, tokens, idx)}, self._no_events
        rows, right = _by_wall(exchange, tokens, idx)
        oracle |= right
        if self._events:
            try:
                by_events, right = self._events.measure(exchange, tokens, idx)
                rows, oracle = [*rows, *by_events], oracle | right
            except RuntimeError as error:  # It spoils no other row.
                no_events = f"does not run with events: {str(error)[:200]}"
        oracle["after"] = _right(forward, tokens, idx)
        return Measured(rows, oracle, expert_rows(workload), no_events=no_events)

    def records(self, problem: bench_shapes.Problem) -> list[dict]:
        """Of one shape: through epd, and through XLA's collective."""
        workload = problem.workload
        sharding = NamedSharding(self._mesh, P("ep"))
        tokens = jax.device_put(problem.tokens.astype(jnp.bfloat16), sharding)
        idx = jax.device_put(problem.idx, sharding)
        exchange = through_epd(self._group, len(tokens), workload.capacity)
        ours = self._measured(exchange, workload, tokens, idx)
        ep.check()
        try:
            exchange = through_xla(self._mesh, workload.capacity)
            theirs = self._measured(exchange, workload, tokens, idx)
        except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
            theirs = Measured(problem=f"does not run here: {str(error)[:200]}")
        xla = {"name": "ragged_all_to_all", "in_time": _IN_TIME["ragged_all_to_all"]}
        return [
            record(workload, {"name": "epd", **self._about.ours}, self._about.place, ours),
            record(workload, xla, self._about.place, theirs),
        ]


def main() -> int:
    asked, library, command = [*sys.argv[1:4], "", "", ""][:3]
    divisor = int(asked or 1)
    peers = machine.peers(command)  # While nothing of this process is on the GPUs.
    devices = jax.devices()
    on_gpus = devices[0].platform in ("gpu", "cuda")
    mesh = Mesh(np.array(devices), ("ep",))
    shapes = bench_shapes.counts(divisor)
    result = {
        "device": devices[0].device_kind,
        "ranks": len(devices),
        "backend": os.environ["EPD_BACKEND"] if on_gpus else "cpu",
        "executor": os.environ["EPD_EXECUTOR"],
    }
    with jax.set_mesh(mesh):
        try:
            group = ep.Group(
                "bench",
                resource=ep.MeshResource(ep_resource="ep"),
                num_experts=len(devices) * LOCAL_EXPERTS,
                max_tokens_per_rank=max(shapes.values()),
                recv_capacity_per_rank=len(devices) * max(shapes.values()) * TOP_K,
                hidden_dim=bench_shapes.hidden(divisor),
                max_token_dtype=jnp.bfloat16,
                job="api-bench",
            )
        except ep.EpError as error:
            print(json.dumps(result | {"skipped": str(error)}), flush=True)
            return 0
        with group:
            ours = {key: result[key] for key in ("backend", "executor")}
            ours["in_time"] = _IN_TIME[ours["backend"]]
            bench = _Bench(mesh, group, _About(ours, _place(devices, peers)), library)
            problems = (bench_shapes.problem(name, len(devices), divisor) for name in shapes)
            records = [one for problem in problems for one in bench.records(problem)]
    print(json.dumps(result | {"records": records}), flush=True)
    wrong = [one["identity"] for one in records if one["outcome"]["status"] == "wrong results"]
    if wrong:
        print(f"wrong results: {wrong}", file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
