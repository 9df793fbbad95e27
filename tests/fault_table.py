"""Makes deploy/faults.md, what which rank is told of which fault, from what the tests heard.

Tests write it into their results (tests/integration/client_c/harness/told.h). Without an argument the table is compared with
the last results; with --write it is written: what was heard before of a fault that is still tried stays beside what was heard
now, since of two witnesses of a fault sometimes one speaks first and sometimes the other.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_TABLE = _ROOT / "deploy" / "faults.md"
_RESULTS = "bazel-testlogs/tests/integration/client_c"

# Fault and who is told; what they heard, as code and text.
Heard = dict[tuple[str, str], set[tuple[str, str]]]

_HEAD = """# Faults and what is told of them

What an operation's error says, on which ranks; made from what the tests heard by `tests/fault_table.py --write` after
`tests/run`, which compares. P, H, N, T and A stand for what differs from run to run: a pid, a host, another name or number, a time, an
address. In front of each text stands `[epd:CODE] group=... epoch=... rank=... phase=...`. What to do: `epctl explain EPD-nnnn`,
or [runbook.md](runbook.md#errors).

| fault | who is told | code | text |
|---|---|---|---|
"""

_VARYING = (
    (r"\bhost=[^\s,;]+", "host=H"),
    (r"\bnode=[^\s,;]+", "node=N"),
    (r"\bnode (?!(?:has|says)\b)\w+", "node N"),
    (r"\bpid([ =])\d+", r"pid\1P"),
    (r"\bversion=[^\s,;]+", "version=N"),
    (r"\bstarted=[^\s,;]+", "started=T"),
    (r"\bsocket /\S+epd\.sock", "socket PATH"),
    # What gRPC says of it.
    (r"is lost: .*; call again", "is lost: ...; call again"),
    (r"\b\d+\.\d+\.\d+\.\d+:\d+", "A"),
    (r"\b0x[0-9a-f]+", "N"),
    (r"\b\d+(\.\d+)?(ms|us|s)\b|(?<=last_seen=)0", "T"),
    (r"(?<!EPD-)\b\d{3,}\b|\b\d+(?= bytes)", "N"),
)
_REPORT = re.compile(
    r"\[epd:(?P<code>[A-Z_]+)\](?: (?:group|tenant|epoch|rank|phase)=[^ :]+)*:? (?P<text>.*)"
)


# In the place of a code: a test failed, and this is no error of epd.
_NO_ERROR = "no error of epd"


def _row(report: str) -> tuple[str, str]:
    """The code and the text of an error, without what differs from run to run."""
    found = _REPORT.search(report)
    if not found:
        return _NO_ERROR, report
    text = found["text"]
    for pattern, letter in _VARYING:
        text = re.sub(pattern, letter, text)
    return found["code"], text.replace("|", "\\|")


def heard_in(results: list[pathlib.Path]) -> Heard:
    """What the tests whose results these XML files are have heard."""
    heard: Heard = collections.defaultdict(set)
    for path in results:
        for told in ElementTree.parse(path).getroot().iter("property"):
            if told.get("name", "").startswith("told "):
                fault, who, *reports = told.get("value", "").split("\n")
                heard[fault, who].update(_row(report) for report in reports)
    return dict(heard)


def rows_of(table: str) -> Heard:
    """The rows of a table that table_of made."""
    rows: Heard = collections.defaultdict(set)
    for line in table.removeprefix(_HEAD).splitlines():
        fault, who, code, text = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        rows[fault, who].add((code, text))
    return dict(rows)


def table_of(heard: Heard) -> str:
    """The table, in Markdown."""
    lines = [
        f"| {fault} | {who} | {code} | {text} |"
        for (fault, who), told in sorted(heard.items())
        for code, text in sorted(told)
    ]
    return _HEAD + "\n".join(lines) + "\n"


def complaints(heard: Heard, table: Heard) -> list[str]:
    """What was heard and is not in the table, and faults of the table of which nothing was heard."""
    unknown = [
        f"{_TABLE.name}: {who} of {fault!r} heard what the table does not have: [{code}] {text}"
        for (fault, who), told in sorted(heard.items())
        for code, text in sorted(told - table.get((fault, who), set()))
    ]
    untried = [
        f"{_TABLE.name}: no test tells {who} of {fault!r}"
        for fault, who in sorted(table.keys() - heard.keys())
    ]
    return unknown + untried


def check(root: pathlib.Path = _ROOT) -> list[str]:
    """Compares the table with what the last run of the tests heard."""
    results = sorted((root / _RESULTS).glob("*/test.xml"))
    table = root / "deploy" / _TABLE.name
    return complaints(heard_in(results), rows_of(table.read_text(encoding="utf-8")))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(f"usage: tests/fault_table.py [--write]\n\n{__doc__}", file=sys.stderr)
        return 2
    if arguments:
        heard = heard_in(sorted((_ROOT / _RESULTS).glob("*/test.xml")))
        before = rows_of(_TABLE.read_text(encoding="utf-8")) if _TABLE.exists() else {}
        both = {
            key: {row for row in told if row[0] != _NO_ERROR} | before.get(key, set())
            for key, told in heard.items()
        }
        _TABLE.write_text(table_of(both), encoding="utf-8")
    found = check()
    for complaint in found:
        print(complaint)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
