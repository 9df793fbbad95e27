"""The kill matrix: a process is killed, stopped for a while, or has another fault at a named place of an operation or of
forming; the others end bit-exact or with a typed error, in their deadline, all ranks work again, and nothing is left behind.

usage: matrix.py FOLDER_OF_BINARIES [--jobs=N] [-k TEXT] [--signals=kill,stop,long,faults] [--keep=FILE] [--missing] [--commit=HASH]

With --keep each case's last outcome stays in FILE, so that cases which are run again alone (-k) do not ask for all others anew.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import queue
import re
import signal
import sys
import threading
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "integration")]

import points  # noqa: E402  (these need the path)
import wait  # noqa: E402
from fleet import LONG_STOP_S, NUM_RANKS, ONE_NODE, TWO_NODES, Fleet, Rank  # noqa: E402

_FIRES_S = 20
_SHORT_STOP_S = 1.0
# What an operation may take beyond a stop: absent, undecided and form of the fleet, and the loss of a node.
_DEADLINE_S = 22
_RECOVERS_S = 45
_QUIET_S = 1.0
_LATE_RANK, _VICTIM_RANK, _BYSTANDER_RANK = 0, 1, 2
_TYPED = re.compile(r"^error (-|\d+) (\[epd:(?P<code>[A-Z_]+)\].*)$")
_NEVER = {"INTERNAL", "UNKNOWN", "OK"}


class Failed(Exception):
    """What a case showed that must not be."""


@dataclasses.dataclass
class Outcome:
    case: points.Case
    heard: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    recovery: float = 0.0
    problem: str = ""
    seconds: float = 0.0
    commit: str = ""


def _code(reply: str | None, who: str) -> str:
    """What a reply amounts to; Failed if no rank may say it."""
    if reply == "exact":
        return "exact"
    found = _TYPED.match(reply or "")
    if reply is None:
        raise Failed(f"{who} heard nothing in its deadline")
    if not found or found["code"] in _NEVER:
        raise Failed(f"{who} heard: {reply[:600]}")
    return found["code"]


class Run:
    """One case on a fleet."""

    def __init__(self, fleet: Fleet, case: points.Case, show: bool):
        self._fleet, self._case, self._show = fleet, case, show
        self._outcome = Outcome(case)
        self._node = fleet.nodes[1 if case.victim in ("epd", "far worker") else 0]
        self._ranks: list[Rank] = []
        self._is_client = case.victim == "client"
        self._places = ONE_NODE if case.one_node else TWO_NODES

    def __call__(self) -> Outcome:
        before = self._fleet.held()
        try:
            for rank in range(NUM_RANKS):
                self._ranks.append(self._start(rank))
            self._go()
            self._leave()
        finally:
            self._fleet.clear_rules()
            for rank in self._ranks:
                rank.close()
        self._check_held(before)
        return self._outcome

    def _rules(self):
        return self._ranks[_VICTIM_RANK].rules if self._is_client else self._node.rules

    def _go(self) -> None:
        case = self._case
        if case.when != "form":
            self._step_once()
        self._rules().write(f"{case.point}={case.action}")
        if case.when == "leave":
            return
        if case.when == "late peer":
            self._ranks[_LATE_RANK].rules.write("client.stage.eager=delay:20ms@1+")
        for rank in self._ranks:
            rank.say("step")
        self._trigger()
        began = self._meet_fault()
        self._until_all_are_exact()
        self._outcome.recovery = time.monotonic() - began

    def _trigger(self) -> None:
        """What leads to the point where no step does."""
        if self._case.when == "lost rank":
            for rank in self._ranks:
                self._take(rank, _DEADLINE_S)
            self._ranks[_BYSTANDER_RANK].close()
            self._replace(_BYSTANDER_RANK)
            for rank in self._ranks:
                rank.say("step")
        elif self._case.when in ("lost worker", "lost peer"):
            peer = self._fleet.nodes[0] if self._case.when == "lost peer" else self._node
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.worker_pid(), signal.SIGKILL)

    def _meet_fault(self) -> float:
        """Waits until the victim is at its point and has its fault; when it was over (a stop) or began."""
        case = self._case
        fired = lambda: self._rules().fired(case.point)  # noqa: E731
        pid = wait.until(fired, f"{case.point} is reached", _FIRES_S)
        began = time.monotonic()
        if case.action == "stop":
            time.sleep(case.hold)
            # One that was stopped for too long has been killed and replaced.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            began = time.monotonic()
        elif case.action == "kill":
            self._replace_killed()
        return began

    def _replace_killed(self) -> None:
        """As a service manager and a job's launcher do. epd replaces its workers itself."""
        if self._is_client:
            self._ranks[_VICTIM_RANK].process.wait(_DEADLINE_S)
            self._ranks[_VICTIM_RANK].close()
            self._replace(_VICTIM_RANK)
        elif self._case.victim in ("epd", "coordinator"):
            self._node.process.wait(_DEADLINE_S)
            self._node.start()

    def _replace(self, rank: int) -> None:
        self._ranks[rank] = self._start(rank)

    def _start(self, rank: int) -> Rank:
        return self._fleet.start_rank(rank, self._case.hidden, self._places)

    def _take(self, rank: Rank, seconds: float) -> str:
        """What the rank says within `seconds`."""
        said = rank.hear(seconds)
        code = _code(said, f"rank {rank.rank}")
        if self._show and code != "exact":
            print(f"    rank {rank.rank}: {said}", flush=True)
        return code

    def _step_once(self) -> None:
        """Before the fault."""
        for rank in self._ranks:
            rank.say("step")
        codes = [self._take(rank, _DEADLINE_S) for rank in self._ranks]
        if codes != ["exact"] * NUM_RANKS:
            raise Failed(f"before the fault, a step ended with {', '.join(codes)}")

    def _until_all_are_exact(self) -> None:
        """Whoever has heard an error tries again, as a program would, and those who had none step with it."""
        end = time.monotonic() + _RECOVERS_S
        since = {rank.rank: time.monotonic() for rank in self._ranks}
        told: set[int] = set()
        while any(rank.busy or rank.rank not in told for rank in self._ranks):
            failed = False
            for rank in self._ranks:
                # One that was started anew.
                if not rank.busy and rank.rank not in told:
                    told.add(rank.rank)
                    failed = True
                if not rank.busy or (
                    not rank.has_answer(0.02) and not self._late(since[rank.rank])
                ):
                    continue
                code = self._take(rank, 0.02)
                failed = failed or code != "exact"
                if rank.rank not in told:
                    self._outcome.heard[code] += 1
                told.add(rank.rank)
            if time.monotonic() > end:
                raise Failed(f"after {_RECOVERS_S} s some rank has had no step that was exact")
            if not failed:
                continue
            for rank in self._ranks:
                if not rank.busy:
                    rank.say("step")
                    since[rank.rank] = time.monotonic()

    @staticmethod
    def _late(since: float) -> bool:
        return time.monotonic() > since + _DEADLINE_S

    def _leave(self) -> None:
        for rank in self._ranks:
            rank.say("leave")
        began = self._meet_fault() if self._case.when == "leave" else None
        for rank in self._ranks:
            if (said := rank.hear(_DEADLINE_S)) != "left":
                raise Failed(f"rank {rank.rank} did not leave: {said}")
            if (now := rank.ask("figures")) is None or not _no_more(
                _figures(now), _figures(rank.figures)
            ):
                raise Failed(f"rank {rank.rank} holds {now}, it began with {rank.figures}")
        if began is not None:
            self._outcome.recovery = time.monotonic() - began

    def _check_held(self, before: dict[str, tuple[int, ...]]) -> None:
        """A second after the last rank's end nothing is held that was not before."""
        time.sleep(_QUIET_S)
        self._fleet.await_workers()
        after = self._fleet.held()
        more = [
            f"{what}: {before.get(what)} before, {now} after"
            for what, now in after.items()
            if not _no_more(now, before.get(what, ()))
        ]
        if more:
            raise Failed(
                "left behind (descriptors, event counters, memfds, bytes in them): "
                + "; ".join(more)
            )


def _figures(line: str) -> tuple[int, ...]:
    return tuple(int(word) for word in line.split()[1:])


def _no_more(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    return len(now) == len(before) and all(n <= b for n, b in zip(now, before, strict=True))


def _warm_up(fleet: Fleet) -> None:
    """What is opened once and kept (streams between the workers) is there before anything is counted."""
    for hidden, places in itertools.product((points.SMALL, points.LARGE), (ONE_NODE, TWO_NODES)):
        ranks = [fleet.start_rank(rank, hidden, places) for rank in range(NUM_RANKS)]
        for rank in ranks:
            rank.say("step")
        replies = [rank.hear(_DEADLINE_S) for rank in ranks]
        if replies != ["exact"] * NUM_RANKS:
            raise Failed(f"the first step of all: {replies}")
        for rank in ranks:
            rank.ask("leave")
            rank.close()
    time.sleep(_QUIET_S)


def _keep_logs(fleet: Fleet, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(f"--- {n.folder.name}\n{n.log()}" for n in fleet.nodes))


def _worker(
    todo: "queue.Queue[points.Case]",
    done: "queue.Queue[Outcome]",
    options: argparse.Namespace,
) -> None:
    fleet: Fleet | None = None
    warm_up = True
    while True:
        try:
            case = todo.get_nowait()
        except queue.Empty:
            break
        outcome = Outcome(case)
        began = time.monotonic()
        try:
            if fleet is None:
                fleet = Fleet(options.binaries)
            if warm_up:
                _warm_up(fleet)
            warm_up = case.victim != "client"
            outcome = Run(fleet, case, options.show)()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the other cases go on and the table says it.
            warm_up = True
            outcome.problem = f"{type(problem).__name__}: {problem}"
            # The next case has a fleet of its own to count in.
            if fleet is not None:
                _keep_logs(fleet, options.logs / f"{case}.log")
                fleet.__exit__()
            fleet = None
        outcome.seconds = round(time.monotonic() - began, 1)
        done.put(outcome)
    if fleet is not None:
        fleet.__exit__()


def _cases(signals: str) -> list[points.Case]:
    wanted = signals.split(",")
    cases = []
    for place in points.places():
        if "kill" in wanted:
            cases.append(place)
        if "stop" in wanted:
            cases.append(dataclasses.replace(place, action="stop", hold=_SHORT_STOP_S))
        if "long" in wanted:
            cases.append(dataclasses.replace(place, action="stop", hold=LONG_STOP_S))
    if "faults" in wanted:
        cases += points.faults()
    return cases


class Kept:
    """The last outcome of each case, in a file."""

    def __init__(self, path: pathlib.Path | None):
        self._path = path
        self._all: dict[str, dict] = {}
        if path is not None and path.exists():
            self._all = json.loads(path.read_text(encoding="utf-8"))

    def put(self, one: Outcome) -> None:
        fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        self._all[str(fields.pop("case"))] = fields
        if self._path is None:
            return
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text(json.dumps(self._all, indent=1) + "\n", encoding="utf-8")
        fresh.rename(self._path)

    def outcomes(self, cases: list[points.Case]) -> list[Outcome]:
        """Of those of `cases` that were ever run."""
        return [Outcome(case, **self._all[str(case)]) for case in cases if str(case) in self._all]


def table(outcomes: list[Outcome]) -> str:
    lines = [
        "| point | victim | when | what | the ranks heard | recovery |",
        "|---|---|---|---|---|--:|",
    ]
    for one in outcomes:
        case = one.case
        hold = f" {case.hold:g} s" if case.action == "stop" else ""
        heard = ", ".join(f"{n} {code}" for code, n in sorted(one.heard.items()))
        lines.append(
            f"| `{case.point}` | {case.victim} | {points.WHEN[case.when]}{', one node' * case.one_node} "
            f"| {case.action}{hold} "
            f"| {one.problem.splitlines()[0] if one.problem else heard} | {one.recovery:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def _run_all(cases: list[points.Case], options: argparse.Namespace, kept: Kept) -> list[Outcome]:
    todo: queue.Queue[points.Case] = queue.Queue()
    done: queue.Queue[Outcome] = queue.Queue()
    for case in cases:
        todo.put(case)
    threads = [
        threading.Thread(target=_worker, args=(todo, done, options)) for _ in range(options.jobs)
    ]
    for thread in threads:
        thread.start()
    outcomes = []
    for number in range(len(cases)):
        one = done.get()
        outcomes.append(one)
        one.commit = options.commit
        kept.put(one)
        verdict = (
            f"FAILED {one.problem}" if one.problem else f"{dict(one.heard)} {one.recovery:.1f} s"
        )
        print(f"[{number + 1}/{len(cases)}] {one.case}: {verdict}", flush=True)
    for thread in threads:
        thread.join()
    return outcomes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="matrix.py", description=__doc__)
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-k", default="", metavar="TEXT")
    parser.add_argument("--signals", default="kill,stop,long,faults")
    parser.add_argument("--show", action="store_true", help="what the ranks heard")
    parser.add_argument("--logs", type=pathlib.Path, default="out/long/kill", help="of what failed")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--missing", action="store_true", help="what has not passed yet alone")
    parser.add_argument("--commit", default="", help="of the sources, for --keep")
    options = parser.parse_args(arguments)
    wanted = _cases(options.signals)
    kept = Kept(options.keep)
    cases = [case for case in wanted if options.k in str(case)]
    if options.missing:
        passed = [one.case for one in kept.outcomes(cases) if not one.problem]
        cases = [case for case in cases if case not in passed]
    now = _run_all(cases, options, kept)
    outcomes = kept.outcomes(wanted)
    print(table(outcomes))
    good = [one for one in outcomes if not one.problem]
    num_points = len({one.case.point for one in good})
    worst = max((one.recovery for one in good), default=0)
    print(
        f"{len(good)} passed, {len(outcomes) - len(good)} failed, {len(wanted) - len(outcomes)} not run; "
        f"{num_points} points; the longest recovery took {worst:.1f} s"
    )
    commits = ", ".join(sorted({one.commit for one in outcomes}))
    print(f"all cases took {sum(one.seconds for one in outcomes):.0f} s; on {commits}")
    nothing_to_do = options.missing and not cases
    return 1 if any(one.problem for one in now) or not (now or nothing_to_do) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
