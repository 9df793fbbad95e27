"""One benchmark's record: what was measured, of whom, with which bytes, where, and whether the results were right.

The shape is that of the CollectiveX records: identity, workload, implementation, topology, runtime, provenance,
measurement.rows, outcome. Pure: whoever measures hands everything over.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

_PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Of the values as they are sorted, between two by their distance; ValueError where there are none."""
    if not values:
        raise ValueError("values: got none, expected at least one")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def slowest(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """Of each run the rank that took longest, from each rank's runs; ValueError where ranks have not run as often."""
    return [max(run) for run in zip(*of_ranks, strict=True)]


def row(
    what: str, microseconds: Sequence[float], clock: str = "wall", **about: Any
) -> dict[str, Any]:
    """A row of measurement.rows: single times, summed up. The clock is "wall", around the calls and the wait for their
    results, or "event": the device's own, from an event in its stream before to one behind."""
    summed = {f"p{p}_us": round(percentile(microseconds, p), 2) for p in _PERCENTILES}
    return {"what": what, "clock": clock, "n": len(microseconds), **about, **summed}


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    ranks: int
    tokens_per_rank: int
    hidden: int
    top_k: int
    num_experts: int
    # Rows that a rank receives, at most over the ranks, and the room for them: the first is what must move.
    live_rows: int
    capacity: int
    dtype: str = "bfloat16"

    def row_bytes(self) -> int:
        return 2 * self.hidden

    def fields(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "live_bytes": self.live_rows * self.row_bytes(),
            "capacity_bytes": self.capacity * self.row_bytes(),
        }


@dataclasses.dataclass(frozen=True)
class Received:
    """What an implementation puts into a rank's receive buffer, at most over the ranks: not all have a row for the same."""

    a_row_per: str
    live_rows: int
    capacity: int

    def fields(self, row_bytes: int) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "live_bytes": self.live_rows * row_bytes,
            "capacity_bytes": self.capacity * row_bytes,
        }


def expert_rows(workload: Workload) -> Received:
    """Of those that have a row per token and expert, in a buffer of the workload's capacity."""
    return Received("token and expert", workload.live_rows, workload.capacity)


@dataclasses.dataclass(frozen=True)
class Measured:
    """`oracle`: whether the results were right before and after what was timed; `problem`: why nothing was; `no_events`: why
    nothing was by events."""

    rows: Sequence[dict[str, Any]] = ()
    oracle: dict[str, bool] = dataclasses.field(default_factory=dict)
    received: Received | None = None
    problem: str = ""
    no_events: str = ""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where it ran, and what of."""

    topology: dict[str, Any]
    runtime: dict[str, Any]
    provenance: dict[str, Any]


def record(
    workload: Workload, implementation: dict[str, Any], place: Place, measured: Measured
) -> dict[str, Any]:
    right = bool(measured.oracle) and all(measured.oracle.values())
    if measured.problem:
        status = "did not run"
    else:
        status = "ok" if right else "wrong results"
    ran = [] if measured.problem else list(measured.rows)
    # Each row says of how many rows and of how much room it is the time.
    room = measured.received.fields(workload.row_bytes()) if measured.received else {}
    return {
        "identity": {
            "suite": "epd",
            "case": workload.name,
            "implementation": implementation["name"],
        },
        "workload": workload.fields(),
        "implementation": implementation,
        "topology": place.topology,
        "runtime": place.runtime,
        "provenance": place.provenance,
        "measurement": {"unit": "us", "rows": [{**one, "received": room} for one in ran]},
        "outcome": {
            "status": status,
            "oracle": measured.oracle,
            "problem": measured.problem,
            "no_events": measured.no_events,
        },
    }
