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


def row(what: str, microseconds: Sequence[float], **about: Any) -> dict[str, Any]:
    """A row of measurement.rows: single times, summed up."""
    summed = {f"p{p}_us": round(percentile(microseconds, p), 2) for p in _PERCENTILES}
    return {"what": what, "clock": "wall", "n": len(microseconds), **about, **summed}


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
class Place:
    """Where it ran, and what of."""

    topology: dict[str, Any]
    runtime: dict[str, Any]
    provenance: dict[str, Any]


def record(
    workload: Workload,
    implementation: dict[str, Any],
    place: Place,
    rows: Sequence[dict[str, Any]],
    oracle: dict[str, bool],
    problem: str = "",
) -> dict[str, Any]:
    """`oracle`: whether the results were right before and after what was timed; `problem`: why nothing was."""
    right = bool(oracle) and all(oracle.values())
    if problem:
        status = "did not run"
    else:
        status = "ok" if right else "wrong results"
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
        "measurement": {"unit": "us", "rows": [] if problem else list(rows)},
        "outcome": {"status": status, "oracle": oracle, "problem": problem},
    }
