"""DeepEP on all of a machine's GPUs, over the shapes, tokens and routes of api_bench.py: prints one JSON object.

    deepep_bench.py [DIVISOR [PEERS]]

A record (bench_record.py) for each shape and kind of calls (deepep_rank.py); where torch, deep_ep or what these need is missing,
or a rank fails, the record says so. PEERS: the command of machine.peers(). Ends with 1 if a result was wrong.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import bench_shapes
import machine
from bench_record import Measured, Place, Received, record, row, slowest

_HERE = pathlib.Path(__file__).resolve().parent
_SECONDS, _GRACE_SECONDS = (
    55,
    5,
)  # of a case; all three, and the question before, within the part's limit
_TAIL = 300  # characters of what a rank said that a record keeps
# Both shapes by the calls for training, and the one of decoding by those made for it.
_CASES = (("normal", "decode 128"), ("normal", "train 4096"), ("low_latency", "decode 128"))
# What else than the rows' way is in the times.
_IN_TIME = {
    "normal": "the layout of routes in each dispatch, whose end the host awaits; a row per token and rank, which in forward and "
    "in the chain is multiplied in place of going to its experts",
    "low_latency": "the sum over experts with weights in each combine",
}
_ASK = """
import json, deep_ep, torch
assert deep_ep.Buffer is not None, "this deep_ep was built without Buffer"
assert torch.cuda.is_available(), "this torch sees no GPU"
said = {"torch": torch.__version__, "deep_ep": getattr(deep_ep, "__version__", "unknown")}
said |= {"gpus": torch.cuda.device_count(), "device": torch.cuda.get_device_name(0)}
print(json.dumps(said))
"""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][-_TAIL:] if lines else "no reason given"


def _ask() -> tuple[dict, str]:
    """The versions and the GPUs, or why DeepEP cannot run here."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK],
            check=False,
            text=True,
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {}, f"{sys.executable}: torch and deep_ep are not imported within {_SECONDS} s"
    if asked.returncode != 0:
        return {}, f"{sys.executable}: {_last_line(asked.stderr)}"
    return json.loads(asked.stdout.splitlines()[-1]), ""


def _wait(processes: list[subprocess.Popen]) -> None:
    """Until all have ended: soon after the first that failed, and at the latest in time."""
    deadline = time.monotonic() + _SECONDS
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[-1].wait(0.1)
        time.sleep(0.05)


def _run(kind: str, shape: str, ranks: int, divisor: int) -> tuple[list[dict], str]:
    """What each rank measured, or the last words of those that failed; one that was killed only waited for others."""
    with tempfile.TemporaryDirectory(prefix="epdg") as name:
        folder = pathlib.Path(name)
        processes = []
        for rank in range(ranks):
            command = [sys.executable, str(_HERE / "deepep_rank.py"), str(rank), str(ranks), kind]
            command += [str(divisor), str(folder / "meet"), shape]
            with (
                (folder / f"{rank}.out").open("w") as out,
                (folder / f"{rank}.err").open("w") as err,
            ):
                processes.append(subprocess.Popen(command, stdout=out, stderr=err))
        _wait(processes)
        problems = [
            f"rank {rank} ended with {process.returncode}: "
            + _last_line((folder / f"{rank}.err").read_text(errors="replace"))
            for rank, process in enumerate(processes)
            if process.returncode
        ]
        if problems:
            return [], "; ".join(problems)
        outputs = [(folder / f"{rank}.out").read_text() for rank in range(ranks)]
    return [json.loads(output.splitlines()[-1]) for output in outputs], ""


def _measured(of_ranks: list[dict]) -> Measured:
    rows = []
    for name in of_ranks[0]["times"]:
        clock, what = name.split(" ", 1)
        in_graph = what.endswith(" in graph")
        what = what.removesuffix(" in graph")
        about = {"pairs": bench_shapes.CHAIN} if what == "chained pair period" else {}
        times = slowest([one["times"][name] for one in of_ranks])
        rows.append(row(what, times, clock=clock, in_graph=in_graph, **about))
    oracle = {when: all(one["oracle"][when] for one in of_ranks) for when in of_ranks[0]["oracle"]}
    received = [one["received"] for one in of_ranks]
    most = {size: max(one[size] for one in received) for size in ("live_rows", "capacity")}
    return Measured(rows, oracle, Received(a_row_per=received[0]["a_row_per"], **most))


def _records(divisor: int, peers: str) -> list[dict]:
    said, reason = _ask()
    ranks = said.get("gpus") or machine.num_gpus() or 1
    runtime = {key: said[key] for key in ("torch", "deep_ep") if key in said}
    topology = {"nodes": 1, "ranks": ranks, "device": said.get("device", "")}
    place = Place(topology | machine.peers(peers), runtime, machine.provenance())
    records = []
    for kind, shape in _CASES:
        of_ranks, problem = ([], reason) if reason else _run(kind, shape, ranks, divisor)
        measured = Measured(problem=problem) if problem else _measured(of_ranks)
        workload = bench_shapes.problem(shape, ranks, divisor).workload
        implementation = {"name": "deep_ep", "calls": kind, "in_time": _IN_TIME[kind]}
        records.append(record(workload, implementation, place, measured))
    return records


def main() -> int:
    divisor = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    records = _records(divisor, sys.argv[2] if len(sys.argv) > 2 else "")
    outcomes = [one["outcome"] for one in records]
    result: dict = {"records": records}
    if all(outcome["status"] == "did not run" for outcome in outcomes):
        result["skipped"] = outcomes[0]["problem"]
    print(json.dumps(result), flush=True)
    return 1 if any(outcome["status"] == "wrong results" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
