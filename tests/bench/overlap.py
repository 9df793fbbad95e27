"""What it saves to compute something beside an exchange, where a wire is slow: a training step over two nodes of a rank each.

Each node has a core of its own: where ranks share cores, one that waits for the wire leaves its core to the other, and nothing
is lost by waiting. ``python tests/bench/overlap.py BINARIES`` measures it alone; the benchmark does the same.
"""

import dataclasses
import os
import pathlib
import sys
import tempfile

import across_nodes
import contenders as who
import problem as problems
import training_step

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests" / "integration" / "daemon"))

import namespaces  # noqa: E402 - a folder of helpers that tests share.

_SIZES = problems.Sizes(2, 512, 1024, 4)
_RATES = ("1gbit", "300mbit")
_NAMES = ("epd", "halves", "beside", "none")


@dataclasses.dataclass(frozen=True)
class Overlap:
    """By rate of the link."""

    steps: dict[str, training_step.Step]
    skipped: str = ""

    def to_json(self) -> dict[str, object]:
        return {rate: dataclasses.asdict(step) for rate, step in self.steps.items()}

    def table(self) -> str:
        """Markdown; a time, and what of it is exposed."""

        def row(rate: str, step: training_step.Step) -> str:
            cells = [f"{step.ms[name]:.0f}, {step.exposed(name):.0%}" for name in _NAMES[:-1]]
            return f"| {rate} | {' | '.join(cells)} | {step.ms['none']:.0f} |"

        if not self.steps:
            return ""
        return "\n".join(
            [
                f"| {_SIZES.name}, two nodes of a core: training step, ms | in one | in halves | beside | no exchange |",
                "|---|--:|--:|--:|--:|",
                *(row(rate, step) for rate, step in self.steps.items()),
            ]
        )


def measure(binaries: pathlib.Path, folder: pathlib.Path, seed: int) -> Overlap:
    """Raises FleetError and WrongResult as the rest of the benchmark."""
    if why := namespaces.allowed():
        return Overlap({}, f"overlap: network namespaces are not allowed ({why})")
    if len(os.sched_getaffinity(0)) < _SIZES.num_ranks:
        return Overlap({}, "overlap: it takes a core for each of two nodes")
    steps = {}
    for rate in _RATES:
        with (
            namespaces.Network(_SIZES.num_ranks) as network,
            across_nodes.nodes_in(network, binaries, folder / rate, 1 << 30, True) as place,
        ):
            if why := network.limit_links(rate):
                return Overlap(steps, f"overlap with a link of {rate}: {why}")
            with who.started(who.TRAINING, _SIZES.num_ranks, place, f".{rate}") as fleet:
                steps[rate] = training_step.measure_step(
                    _SIZES, place, fleet, seed, _NAMES, ("epd", "beside")
                )
    return Overlap(steps)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="epdb", dir="/tmp") as name:
        measured = measure(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(name), 1)
    print(measured.table(), measured.skipped, sep="\n")


if __name__ == "__main__":
    main()
