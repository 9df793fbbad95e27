"""Goal: no test case is lost or counted twice between the tools' result files and the closing line."""

import pathlib

import bazel_tests
import pytest
import tally

_GTEST = """<testsuites>
 <testsuite name="A">
  <testcase name="Works" status="run" result="completed" classname="A" time="1.5"/>
  <testcase name="Breaks" status="run" result="completed" classname="A">
   <failure message="a.cc:3&#x0A;Expected 1"/></testcase>
  <testcase name="Skips" status="run" result="skipped" classname="A">
   <skipped message="a.cc:9&#x0A;no GPU"/></testcase>
  <testcase name="DISABLED_Old" status="notrun" result="suppressed" classname="A"/>
 </testsuite>
</testsuites>"""

_PYTEST = """<testsuites><testsuite>
 <testcase classname="t" name="works"/>
 <testcase classname="t" name="skips"><skipped type="pytest.skip" message="no network"/></testcase>
 <testcase classname="t" name="errs"><error message="fixture died"/></testcase>
</testsuite></testsuites>"""


def _cases(tmp_path: pathlib.Path, text: str) -> list[tally.Case]:
    path = tmp_path / "r.xml"
    path.write_text(text)
    return tally.cases_in(path, prefix="//a:t ")


def test_googletest_results(tmp_path: pathlib.Path) -> None:
    assert _cases(tmp_path, _GTEST) == [
        tally.Case("//a:t A.Works", "passed", seconds=1.5),
        tally.Case("//a:t A.Breaks", "failed", "a.cc:3 Expected 1"),
        tally.Case("//a:t A.Skips", "skipped", "a.cc:9 no GPU"),
        tally.Case("//a:t A.DISABLED_Old", "skipped", "disabled in the source"),
    ]


def test_pytest_results(tmp_path: pathlib.Path) -> None:
    assert [(c.outcome, c.reason) for c in _cases(tmp_path, _PYTEST)] == [
        ("passed", ""),
        ("skipped", "no network"),
        ("failed", "fixture died"),
    ]


@pytest.mark.parametrize("text", ["", "<testsuites/>", "<testsuites><cut"])
def test_results_that_hold_no_case_are_an_error(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(ValueError, match="r.xml"):
        _cases(tmp_path, text)


def test_report_ends_with_the_closing_line_after_every_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = [
        tally.Case("a", "passed"),
        tally.Case("b", "skipped", "no GPU"),
        tally.Case("c", "failed", "Expected 1"),
    ]
    assert tally.report(cases) == 1
    assert capsys.readouterr().out.splitlines() == [
        "SKIPPED b: no GPU",
        "FAILED c: Expected 1",
        "1 passed, 1 failed, 1 skipped",
    ]
    assert tally.report(cases[:2]) == 0


def test_what_passes_when_run_again_has_passed_and_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = [
        tally.Case("a", "passed"),
        tally.Case("b", "failed", "waited 2 s"),
        tally.Case("c", "failed", "Expected 1"),
        tally.Case("d", "failed", "Expected 2"),
    ]
    second = [tally.Case("b", "passed"), tally.Case("c", "failed", "Expected 1 again")]
    merged = tally.with_second_run(first, second)
    assert tally.report(merged) == 1
    assert capsys.readouterr().out.splitlines() == [
        "PASSED ONLY WHEN RUN AGAIN b: waited 2 s",
        "FAILED c: Expected 1",
        "FAILED d: Expected 2",
        "2 passed, 2 failed, 0 skipped",
    ]
    assert tally.report(merged[:2]) == 0


def test_the_slowest_parts_are_targets_modules_and_checks() -> None:
    cases = [
        tally.Case("//a:t A.One", "passed", seconds=2),
        tally.Case("//a:t A.Two", "failed", "Expected 1", seconds=3),
        tally.Case("tests.lint.test_x.test_one[a.b]", "passed", seconds=4),
        tally.Case("tests.lint.test_x.TestX.test_two", "skipped", "no GPU", seconds=0.5),
        tally.Case("tests.lint.test_y.test_one", "passed", seconds=1),
        tally.Case("check clang-tidy", "passed", seconds=700),
    ]
    assert tally.slowest(cases, 3) == [
        "   700.0 s  check clang-tidy",
        "     5.0 s  //a:t",
        "     4.5 s  tests.lint.test_x",
    ]


def test_saved_results_are_read_back(tmp_path: pathlib.Path) -> None:
    cases = [tally.Case("a", "passed"), tally.Case("b", "skipped", "no GPU")]
    tally.save(cases, tmp_path / "t.json")
    assert tally.load(tmp_path / "t.json") == cases


def _configured(label: str, kind: str = "cc_test rule") -> dict:
    return {"id": {"targetConfigured": {"label": label}}, "configured": {"targetKind": kind}}


def _result(label: str, xml: pathlib.Path) -> dict:
    output = {"name": "test.xml", "uri": xml.as_uri()}
    return {"id": {"testResult": {"label": label}}, "testResult": {"testActionOutput": [output]}}


def _summary(label: str, status: str) -> dict:
    summary = {"overallStatus": status, "totalRunDurationMillis": "1500"}
    return {"id": {"testSummary": {"label": label}}, "testSummary": summary}


def test_a_target_line_is_printed_when_the_target_ends(tmp_path: pathlib.Path) -> None:
    results = bazel_tests.Results()
    assert results.take(_configured("//a:t")) is None
    assert results.take(_summary("//a:t", "PASSED")) == "PASSED   //a:t (1.5 s)"


def test_a_target_that_did_not_build_is_a_failure() -> None:
    results = bazel_tests.Results()
    results.take(_configured("//a:t"))
    results.take(_configured("//a:lib", "cc_library rule"))
    assert results.cases() == [tally.Case("//a:t", "failed", "did not build")]


def test_a_target_that_died_after_its_last_case_is_a_failure(tmp_path: pathlib.Path) -> None:
    xml = tmp_path / "test.xml"
    xml.write_text('<testsuites><testcase classname="A" name="Works"/></testsuites>')
    results = bazel_tests.Results()
    results.take(_result("//a:t", xml))
    results.take(_summary("//a:t", "FAILED"))
    assert [case.outcome for case in results.cases()] == ["passed", "failed"]


def test_a_target_without_results_is_a_failure(tmp_path: pathlib.Path) -> None:
    results = bazel_tests.Results()
    results.take(_summary("//a:t", "PASSED"))
    assert results.cases() == [tally.Case("//a:t", "failed", "left no test.xml")]
