"""What it saves that a payload's arrays share an exchange, and what a layer's prepare costs: ``python tests/bench/payload.py
BINARIES``, with an epd of its own. No part of ``tests/bench/run``.
"""

import pathlib
import sys
import tempfile

import contenders as who
import problem as problems
import training_step

from daemon import Daemon, find_program

_SIZES = ((8, 1024, 4), (8, 7168, 8), (64, 1024, 4), (64, 7168, 8), (512, 2048, 4))
_NAMES = who.PAYLOAD.operations


def measure(place: who.Place, seed: int) -> list[training_step.Step]:
    """Two ranks, then four. Raises as training_step."""
    steps = []
    for num_ranks in (2, 4):
        with who.started(who.PAYLOAD, num_ranks, place) as fleet:
            for tokens, hidden, top_k in _SIZES:
                sizes = problems.Sizes(num_ranks, tokens, hidden, top_k)
                step = training_step.measure_step(
                    sizes, place, fleet, seed, _NAMES, ("together", "apart")
                )
                steps.append(step)
    return steps


def _row(step: training_step.Step) -> str:
    times = (f"{step.ms[name] * 1e3:.0f} ({step.cpu_ms[name] * 1e3:.0f})" for name in _NAMES)
    return f"| {step.sizes.name} | {' | '.join(times)} |"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="epdb", dir="/tmp") as name:
        folder = pathlib.Path(name)
        daemon = Daemon(find_program("epd"), folder / "epd", 2 << 30)
        try:
            binaries = pathlib.Path(sys.argv[1]).resolve()
            pids = tuple(daemon.pids())
            steps = measure(who.Place(binaries, folder, daemon.socket, pids), 1)
        finally:
            daemon.stop()
    print(f"| us (CPU time of ranks and epd) | {' | '.join(_NAMES)} |", *map(_row, steps), sep="\n")


if __name__ == "__main__":
    main()
