"""Goal: the table of the long runs says what they printed, and a part that failed, said nothing or never ran is not passed."""

import figures
import pytest

_KILL = (
    "[1/2] epd.join.asked epd kill: {'exact': 3} 2.5 s\n"
    "40 passed, 0 failed, 0 not run; 39 points; the longest recovery took 5.4 s\n"
    "all cases took 300 s; on abc1234\n"
)
_SIM = (
    "100000 seeds, 12 steps, 3 times READY, 1 of them again, 0 failed joins, 9.0 s: all held\n"
    "10.5 hours simulated, up to 8 nodes, 5 good calls, 6 failed calls\n"
    "50000 seeds, 12 steps, 3 times READY, 1 of them again, 0 failed joins, 9.0 s: all held\n"
    "20.0 hours simulated, up to 64 nodes, 5 good calls, 6 failed calls\n"
    "| a worker hears another decision | 3 | truth |\n20 of 20 found\n"
)
_FUZZ = ["tests/fuzz/hello_fuzz.cc"]


def _of(part: str, said: str) -> figures.Figures:
    return figures.read(said, figures.parts(_FUZZ)[part])


def _passed(part: str, said: str, status: int = 0) -> bool:
    return figures.passed(figures.parts(_FUZZ)[part], _of(part, said), status)


_FUZZED = (
    "stat::number_of_executed_units: 17\n"
    "coverage: 815 blocks, the last of them new after 40 s of 160 s\n"
)


def test_figures_are_read_out_of_what_a_part_prints() -> None:
    assert _of("kill-kill", _KILL) == {
        "runs": 40,
        "failed": 0,
        "not run": 0,
        "places": 39,
        "s worst recovery": 5.4,
    }
    assert _of("sim", _SIM) == {
        "scenarios": 150_000,
        "hours simulated": 30.5,
        "planted bugs found": 20,
    }
    assert _of("fuzz-hello", _FUZZED) == {
        "inputs": 17,
        "blocks reached": 815,
        "s until the last new one": 40,
    }
    assert _of("packages", "debian: passed in 4 s\nwheel: FAILED in 2 s\n") == {"packages": 1}


@pytest.mark.parametrize(
    ("said", "status", "good"),
    [
        (_KILL, 0, True),
        (_KILL, 1, False),
        (_KILL.replace("0 failed", "1 failed"), 0, False),
        (_KILL.replace("0 not run", "1 not run"), 0, False),
        ("", 0, False),
    ],
    ids=["good", "status", "failed", "not run", "silent"],
)
def test_a_part_has_passed_only_if_it_has_said_so(said: str, status: int, good: bool) -> None:
    assert _passed("kill-kill", said, status) == good


def _readme(rows: list[figures.Row]) -> dict[str, str]:
    failpoints = "| failpoint | where |\n|---|---|\n| `epd.a` | x |\n| `epd.b` | x |\n"
    text = f"# x\n\n{figures.HEADING}\n\n{figures.table(rows, failpoints)}\n## y\n"
    return {figures.README: text, figures.FAILPOINTS: failpoints, _FUZZ[0]: ""}


def _rows() -> list[figures.Row]:
    return [figures.Row(f"`{part}`") for part in figures.parts(_FUZZ)]


def test_rows_come_back_from_the_readme_and_add_up() -> None:
    row = figures.Row(
        "`sim`", "passed", "1,500 scenarios; 0.5 hours simulated", "1,800 s", "a", "b"
    )
    bad = figures.Row("`replace`", "FAILED", "7 replacements", "1 s", "a", "b")
    rows = [{"`sim`": row, "`replace`": bad}.get(one.part, one) for one in _rows()]
    files = _readme(rows)
    assert list(figures.rows_of(files[figures.README]).values()) == rows
    totals = files[figures.README].split("\n")[6]
    # Failpoints; then of parts that have passed.
    assert totals == "| 2 | 0 | 0 | 0 | 0 | 1,500 | 0.5 | 0 | 0 | 0.5 |"
    assert figures.check(files) == []


def test_a_number_by_hand_and_a_row_too_few_or_too_many_are_refused() -> None:
    files = _readme(_rows())
    changed = {**files, figures.README: files[figures.README].replace("| 2 | 0", "| 2 | 9")}
    assert any("are old" in complaint for complaint in figures.check(changed))
    few = {**files, "tests/fuzz/other_fuzz.cc": ""}
    assert any("no row of fuzz-other" in complaint for complaint in figures.check(few))
    many = {path: text for path, text in files.items() if path != _FUZZ[0]}
    assert any("there is no part fuzz-hello" in complaint for complaint in figures.check(many))
