"""Trains MaxText's tiny DeepSeek through epd, by both routes, and holds every step to its own run without expert parallelism.

    python tests/long/maxtext/compare.py [-k TEXT] [--seconds N]

Prints a row for each training; exit status 0 only if all are within the tolerance (cases.py). Logs and metrics: out/maxtext.
"""

import argparse
import itertools
import json
import pathlib
import sys
import tempfile

import cases
import processes

_HERE = pathlib.Path(__file__).resolve().parent
_PROCESSES = 4


def _train(
    python: pathlib.Path,
    wanted: list[cases.Case],
    count: int,
    runtime: pathlib.Path,
    seconds: float,
) -> None:
    """The cases one after the other, in ``count`` processes; all of one route and mesh."""
    first = wanted[0]
    for case in wanted:
        for left in processes.OUT.glob(f"{case.name}.*.jsonl"):
            left.unlink()
    listed = processes.OUT / f"{first.name}.json"
    listed.write_text(
        json.dumps(
            [case.arguments(str(processes.OUT / "runs"), count) for case in wanted], indent=1
        )
    )
    flag = cases.FLAGS.get(first.route)
    run = ["-m", "epd.jax.run", flag] if flag else []
    command = [str(python), *run, str(_HERE / "train.py"), str(listed)]
    processes.run_processes(count, command, processes.OUT / first.name, runtime, seconds)


def _steps(case: cases.Case) -> list[cases.Step]:
    lines = (processes.OUT / f"{case.name}.0.jsonl").read_text().splitlines()
    return cases.steps_of([json.loads(line) for line in lines])


def _row(case: cases.Case) -> tuple[bool, str]:
    """Whether the case is within its tolerance, and its row of the table."""
    got = _steps(case)
    loss, norm = cases.difference(got, _steps(case.reference))
    good = max(loss, norm) <= cases.TOLERANCE[case.dtype]
    route = case.route + (", interpreted product" if case.words.get("megablox") == "true" else "")
    seconds = sorted(step.seconds for step in got[2:] or got)  # The first two compile.
    return good, (
        f"| {route} | {case.mesh} | {case.layers} | {case.dtype} | {got[0].loss:.4f} to {got[-1].loss:.4f} | {loss:.1e}"
        f" | {norm:.1e} | {seconds[len(seconds) // 2]:.2f} s | {'passed' if good else 'FAILED'} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="cases with it in their names alone")
    parser.add_argument(
        "--seconds", type=float, default=1200, help="for the cases of one mesh together"
    )
    given = parser.parse_args()
    every = [*cases.all_cases(), *cases.timed_cases()]
    wanted = [case for case in every if given.k in case.name]
    if not wanted:
        parser.error(
            f"no case has {given.k!r} in its name; they are {', '.join(c.name for c in every)}"
        )
    failed = 0
    try:
        python = processes.provide()
    except processes.Failed as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="epdmt", dir="/tmp") as runtime:
        # What is timed runs by itself: the first step of a process pays for imports.
        place = lambda case: (case.route, case.mesh, tuple(case.words.items()))  # noqa: E731
        references = sorted({case.reference for case in wanted}, key=lambda case: case.name)
        print(
            "| route | mesh | layers | dtype | loss | of losses | of gradient norms | a step | |\n|---|---|---|---|---|--:|--:|--:|---|"
        )
        for _, batch in itertools.groupby([*references, *wanted], place):
            own = list(batch)
            alone = own[0].mesh == "one device"
            count = 1 if alone else _PROCESSES
            try:
                _train(python, own, count, pathlib.Path(runtime), given.seconds)
                rows = [] if alone else [_row(case) for case in own]
            except (processes.Failed, OSError, ValueError) as error:
                print(
                    f"compare.py: {own[0].name} and {len(own) - 1} more: {error}", file=sys.stderr
                )
                failed += len(own)
                continue
            for good, row in rows:
                failed += not good
                print(row, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
