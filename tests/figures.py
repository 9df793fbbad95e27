"""What the long runs have shown: a record per part in out/long, and the table of tests/README.md that is made from them.

usage: figures.py record PART --status=N --seconds=N --commit=HASH   reads out/long/PART.log; tests/long/run calls it
       figures.py table [--write]                                    see tests/long/run table

A row says the part's last run: of those that were here and that the README has, the later one. Figures are read out of what
a part prints, never written by hand.
"""

import argparse
import dataclasses
import datetime
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterable

_ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = _ROOT / "out" / "long"
README = "tests/README.md"
FAILPOINTS = "proto/failpoint/README.md"
HEADING = "## What the long runs have shown"
_COLUMNS = ("part", "result", "figures", "took", "commit", "UTC")
_NOT_RUN = "not run"

Figures = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Figure:
    """Numbers in a part's output, by the pattern's only group, made one by `merge`; a word counts as 1."""

    label: str
    pattern: str
    merge: Callable[[Iterable[float]], float] = sum
    # A part with more of it has not passed.
    most: float = float("inf")


_BAZEL = (Figure("test targets", r"^Executed \d+ out of (\d+) tests?:"),)
_FUZZ = (
    Figure("inputs", r"^stat::number_of_executed_units:\s+(\d+)"),
    Figure("blocks reached", r"^coverage: (\d+) blocks"),
    Figure("s until the last new one", r"^coverage: .* new after (\d+) s"),
)


def _kill(places: str) -> tuple[Figure, ...]:
    return (
        Figure("runs", r"^(\d+) passed, \d+ failed, \d+ not run; "),
        Figure("failed", r"^\d+ passed, (\d+) failed, \d+ not run; ", most=0),
        Figure("not run", r"^\d+ passed, \d+ failed, (\d+) not run; ", most=0),
        Figure(places, r" not run; (\d+) points; "),
        Figure("s worst recovery", r"; the longest recovery took ([\d.]+) s$", max),
    )


_KNOWN: dict[str, tuple[Figure, ...]] = {
    "kill-kill": _kill("places"),
    "kill-stop": _kill("places"),
    "kill-long": _kill("places"),
    "kill-faults": _kill("places of other faults"),
    "sim": (
        Figure("scenarios", r"^(\d+) seeds, \d+ steps"),
        Figure("hours simulated", r"^([\d.]+) hours simulated"),
        Figure("planted bugs found", r"^(\d+) of \d+ found$"),
    ),
    "replace": (
        Figure("replacements", r"^replacements, with no call failed\s+(\d+) in"),
        Figure("calls of ranks meanwhile", r"^calls of ranks meanwhile\s+(\d+)"),
        Figure("ms longest standstill", r"^epd stands still, .* / .* / (\d+) ms"),
    ),
    "leave": (
        Figure("rounds", r"^[a-z ]+: (\d+) rounds, 0 bytes quarantined$"),
        Figure("bytes left behind", r"^left behind: (\d+) bytes, \d+ sets$", most=0),
        Figure("sets left behind", r"^left behind: \d+ bytes, (\d+) sets$", most=0),
    ),
    "load": (
        Figure("operations/s", r"^\d+ sessions, \d+ groups\s+(\d+) operations/s"),
        Figure("minutes of it", r"^minutes\s+([\d.]+)"),
        Figure("% more memory", r"^memory of epd .*, ([+-][\d.]+)%", max),
    ),
    "soak": (
        Figure("hours of faults", r"^hours\s+([\d.]+)"),
        Figure("faults", r"^faults\s+(\d+)"),
        Figure("steps of ranks", r"^steps of all ranks, every sum compared\s+(\d+)"),
        Figure("s worst recovery", r"^longest until the last failed call\s+([\d.]+) s", max),
    ),
    **dict.fromkeys(
        ("asan-unit", "asan-sim", "asan-processes", "tsan-unit", "tsan-processes"), _BAZEL
    ),
    "jax-versions": (Figure("cases", r"^jax .*: passed: .*?(\d+) passed"),),
    "packages": (Figure("packages", r"^\w+: (passed) in \d+ s"),),
    "gpu-visit": (
        Figure("MB of the bundle", r"^bundle: ([\d.]+) MB"),
        Figure("parts over the fake driver", r"^parts over the fake driver: (\d+)"),
    ),
    "torch": (Figure("cases", r"^(\d+) passed"),),
    "transformers": (Figure("trainings", r"^train_transformers: \S+ (equals) the dense model"),),
    "many-ranks": (
        Figure("ranks", r"^(\d+) ranks on \d+ nodes joined"),
        Figure("KiB of a rank", r"^memory of a rank: (\d+) KiB"),
        Figure("s until all knew of a death", r"^the first rank was told .* all after ([\d.]+) s"),
    ),
    "maxtext": (Figure("trainings", r"\| (passed) \|$"),),
}
_BAD_LABELS = {one.label for figures in _KNOWN.values() for one in figures if one.most == 0}
# Over all parts that have passed: what is added up, and how.
_TOGETHER = (
    ("places killed and stopped at", "places", max),
    ("places of other faults", "places of other faults", max),
    ("runs", "runs", sum),
    ("worst recovery, s", "s worst recovery", max),
    ("scenarios", "scenarios", sum),
    ("hours simulated", "hours simulated", sum),
    ("inputs", "inputs", sum),
    ("replacements", "replacements", sum),
)


def parts(fuzz_sources: Iterable[str]) -> dict[str, tuple[Figure, ...]]:
    """Every part that has a row, and its figures."""
    names = sorted(pathlib.PurePath(path).name for path in fuzz_sources)
    fuzz = {f"fuzz-{name.removesuffix('_fuzz.cc')}": _FUZZ for name in names}
    return {**_KNOWN, **fuzz}


def _here() -> dict[str, tuple[Figure, ...]]:
    return parts(str(path) for path in (_ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))


def read(output: str, figures: tuple[Figure, ...]) -> Figures:
    """The figures that a part has printed; none where it has not come so far."""
    found: Figures = {}
    for figure in figures:
        said = re.findall(figure.pattern, output, re.MULTILINE)
        if said:
            found[figure.label] = figure.merge(_number(word) for word in said)
    return found


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 1.0


def passed(figures: tuple[Figure, ...], found: Figures, status: int) -> bool:
    """Whether the part has: its status is 0, it has said every figure, and none is beyond what it may be."""
    return status == 0 and all(
        figure.label in found and found[figure.label] <= figure.most for figure in figures
    )


@dataclasses.dataclass(frozen=True)
class Row:
    part: str
    result: str = _NOT_RUN
    figures: str = ""
    took: str = ""
    commit: str = ""
    utc: str = ""

    def line(self) -> str:
        return "| " + " | ".join(dataclasses.astuple(self)) + " |"

    def numbers(self) -> Figures:
        pairs = (one.partition(" ") for one in self.figures.split("; ") if one)
        return {label: float(number.replace(",", "")) for number, _, label in pairs}


def _text(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.2f}".rstrip("0")


def _row_of(record: dict) -> Row:
    worth_saying = {
        label: number
        for label, number in record["figures"].items()
        if number or label not in _BAD_LABELS
    }
    return Row(
        f"`{record['part']}`",
        "passed" if record["passed"] else "FAILED",
        "; ".join(f"{_text(number)} {label}" for label, number in worth_saying.items()),
        f"{record['seconds']:,} s",
        record["commit"],
        record["utc"],
    )


def rows_of(readme: str) -> dict[str, Row]:
    """The rows that stand in the README, by part."""
    rows = {}
    below = readme.partition(HEADING)[2].partition("\n## ")[0]
    for line in below.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(_COLUMNS) and cells[0].startswith("`"):
            rows[cells[0].strip("`")] = Row(*cells)
    return rows


def _together(rows: list[Row], failpoints: int) -> list[tuple[str, float]]:
    good = [row.numbers() for row in rows if row.result == "passed"]
    totals: list[tuple[str, float]] = [("failpoints", failpoints)]
    for name, label, merge in _TOGETHER:
        totals.append((name, merge([one[label] for one in good if label in one] or [0])))
    seconds = sum(
        float(row.took.removesuffix(" s").replace(",", ""))
        for row in rows
        if row.result == "passed"
    )
    totals.append(("hours of running", round(seconds / 3600, 1)))
    return totals


def table(rows: list[Row], failpoints_readme: str) -> str:
    """Both tables: what all parts that have passed come to, and a row per part."""
    failpoints = len(re.findall(r"^\| `", failpoints_readme, re.MULTILINE))
    together = _together(rows, failpoints)
    lines = [
        "| " + " | ".join(name for name, _ in together) + " |",
        "|" + "--:|" * len(together),
        "| " + " | ".join(_text(number) for _, number in together) + " |",
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|---|---|---|--:|---|---|",
        *(row.line() for row in rows),
    ]
    return "\n".join(lines) + "\n"


def check(files: dict[str, str]) -> list[str]:
    """Complaints about the README's tables: each part has a row, and what they come to follows from the rows."""
    readme = files.get(README, "")
    wanted = parts(path for path in files if re.fullmatch(r"tests/fuzz/\w+_fuzz\.cc", path))
    rows = rows_of(readme)
    complaints = [f"{README}: no row of {part}" for part in wanted if part not in rows]
    complaints += [f"{README}: there is no part {part}" for part in rows if part not in wanted]
    if not complaints:
        text = table([rows[part] for part in wanted], files.get(FAILPOINTS, ""))
        if text not in readme:
            complaints = [f"{README}: the figures are old; run tests/long/run table --write"]
    return complaints


def _record(options: argparse.Namespace) -> int:
    figures = _here()[options.part]
    log = (OUT / f"{options.part}.log").read_text(encoding="utf-8", errors="replace")
    found = read(log, figures)
    good = passed(figures, found, options.status)
    # A part that may be run case by case says itself what all of its cases took, and of which sources each was.
    said = re.search(r"^all cases took (\d+) s; on (.+)$", log, re.MULTILINE)
    record = {
        "part": options.part,
        "passed": good,
        "figures": found,
        "seconds": int(said[1]) if said else options.seconds,
        "commit": said[2] if said else options.commit,
        "utc": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }
    (OUT / f"{options.part}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    missing = [figure.label for figure in figures if figure.label not in found]
    if options.status == 0 and missing:
        print(f"{options.part}: has not said: {', '.join(missing)}")
    return 0 if good else 1


def _newest(part: str, in_readme: dict[str, Row]) -> Row:
    row = in_readme.get(part, Row(f"`{part}`"))
    path = OUT / f"{part}.json"
    if not path.exists():
        return row
    here = _row_of(json.loads(path.read_text(encoding="utf-8")))
    return here if here.utc >= row.utc else row


def _table(options: argparse.Namespace) -> int:
    path = _ROOT / README
    readme = path.read_text(encoding="utf-8")
    in_readme = rows_of(readme)
    rows = [_newest(part, in_readme) for part in _here()]
    text = table(rows, (_ROOT / FAILPOINTS).read_text(encoding="utf-8"))
    print(text, end="")
    if options.write:
        before, heading, below = readme.partition(HEADING)
        introduction, _, rest = below.partition("| failpoints |")
        after = rest.partition("\n## ")
        path.write_text(
            f"{before}{heading}{introduction}{text}{after[1]}{after[2]}", encoding="utf-8"
        )
    for result in (_NOT_RUN, "FAILED"):
        names = [row.part.strip("`") for row in rows if row.result == result]
        if names:
            print(f"{result}: {', '.join(names)}")
    return 0 if all(row.result == "passed" for row in rows) else 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/long/run", description=__doc__)
    commands = parser.add_subparsers(required=True)
    record = commands.add_parser("record")
    record.add_argument("part", choices=sorted(_here()))
    record.add_argument("--status", type=int, required=True)
    record.add_argument("--seconds", type=int, required=True)
    record.add_argument("--commit", required=True)
    record.set_defaults(do=_record)
    shown = commands.add_parser("table")
    shown.add_argument("--write", action="store_true", help=f"into {README}")
    shown.set_defaults(do=_table)
    options = parser.parse_args(arguments)
    return options.do(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
