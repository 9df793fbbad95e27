"""Goal: a guarantee without a test that is there is refused, and so is a failpoint that two places share or no table has."""

import failpoints
import guarantees
import pytest
import tree

_TEST = "tests/unit/x_test.cc"
_ROW = f"| a peer dies | the others hear of it | `{_TEST}` `OthersHear` `OthersGoOn` |\n"


_RECORD, _BUGS = "tests/track_record.md", "## Bugs that were found"
_BUG = f"| a bug | `sim --first=7` | abc1234 | `{_TEST}` `OthersHear` |\n"


def _guarantees(row: str, bug: str = _BUG) -> list[str]:
    text = f"# x\n\n{guarantees.HEADING}\n\n| what happens | what | proved by |\n|---|---|---|\n{row}\n## y\n"
    record = f"# x\n\n{_BUGS}\n\n| bug | found by | mended in | held by |\n|---|---|---|---|\n{bug}"
    tests = "TEST(X, OthersHear) {}\nTEST(X, OthersGoOn) {}\n"
    return guarantees.check({guarantees.README: text, _RECORD: record, _TEST: tests})


def test_a_guarantee_with_its_tests_passes() -> None:
    assert _guarantees(_ROW) == []


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("", "no table"),
        ("| a | b | c |\n", "names no test"),
        (_ROW.replace("OthersGoOn", "OthersGo"), "has no test OthersGo"),
        (_ROW.replace(_TEST, "tests/unit/y_test.cc"), "there is no tests/unit/y_test.cc"),
        (f"| a | b | `{_TEST}` |\n", f"names no test of {_TEST}"),
    ],
)
def test_a_guarantee_without_its_test_is_refused(row: str, says: str) -> None:
    assert any(says in complaint for complaint in _guarantees(row))


@pytest.mark.parametrize("bug", ["", "| a | b | c | d |\n", _BUG.replace("OthersHear", "Nobody")])
def test_a_bug_without_the_test_that_holds_its_mend_is_refused(bug: str) -> None:
    assert any(complaint.startswith(_RECORD) for complaint in _guarantees(_ROW, bug))


def _sources(*uses: str) -> tree.Tree:
    many = [f'EPD_FAILPOINT("worker.point.number_{"x" * (i + 1)}");' for i in range(60)]
    return {"daemon/a.cc": "\n".join([*many, *uses])}


def _failpoints(files: tree.Tree) -> list[str]:
    return failpoints.check({**files, failpoints.README: "# x\n\n" + failpoints.table(files)})


def test_failpoints_that_stand_in_the_table_pass() -> None:
    files = _sources(
        'if (EPD_FAILPOINT_FAILS("epd.a.b")) return;', 'EPD_FAILPOINT_CALL("client.c", E, f());'
    )
    assert _failpoints(files) == []
    assert "| `epd.a.b` | error | `daemon/a.cc` |" in failpoints.table(files)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ('EPD_FAILPOINT("worker.point.number_x");', "stands in daemon/a.cc, too"),
        ('EPD_FAILPOINT("other.name");', "expected epd, worker or client"),
        ('EPD_FAILPOINT_EXPLODES("epd.a");', "there is no EPD_FAILPOINT_EXPLODES"),
    ],
)
def test_a_failpoint_that_is_wrong_is_refused(use: str, says: str) -> None:
    assert any(says in complaint for complaint in _failpoints(_sources(use)))


def test_an_old_table_and_too_few_failpoints_are_refused() -> None:
    files = _sources()
    assert any("the table is old" in c for c in failpoints.check({**files, failpoints.README: ""}))
    assert any("at least 60" in c for c in _failpoints({"daemon/a.cc": ""}))
