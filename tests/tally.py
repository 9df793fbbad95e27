"""Counts test cases in the JUnit XML files that GoogleTest, Bazel and pytest write."""

import collections
import dataclasses
import json
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from typing import Literal

Outcome = Literal["passed", "failed", "skipped"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One test case.

    `reason` is why it failed or was skipped, on one line; `seconds` is how long it took; `first_failure` is why a case
    that passed had failed before it was run again.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    first_failure: str = ""


def _one_line(text: str | None, limit: int = 300) -> str:
    words = " ".join((text or "").split())
    return words if len(words) <= limit else words[: limit - 3] + "..."


def _case(element: ElementTree.Element, prefix: str) -> Case:
    parts = [element.get("classname", ""), element.get("name", "")]
    name = prefix + ".".join(part for part in parts if part)
    seconds = float(element.get("time") or 0)
    for tag in ("failure", "error"):
        found = element.find(tag)
        if found is not None:
            return Case(name, "failed", _one_line(found.get("message") or found.text), seconds)
    skipped = element.find("skipped")
    if skipped is not None or element.get("result") == "skipped":
        text = "" if skipped is None else skipped.get("message") or skipped.text
        return Case(name, "skipped", _one_line(text) or "no reason given", seconds)
    if element.get("status") == "notrun":
        return Case(name, "skipped", "disabled in the source")
    return Case(name, "passed", seconds=seconds)


def cases_in(xml: pathlib.Path, prefix: str = "") -> list[Case]:
    """Returns the cases of one file, names prefixed with `prefix`.

    Raises:
      ValueError: the file is not there, is no XML, or holds no case at all.
    """
    try:
        root = ElementTree.parse(xml).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ValueError(f"cannot read test results {xml}: {error}") from error
    cases = [_case(element, prefix) for element in root.iter("testcase")]
    if not cases:
        raise ValueError(f"no test case in {xml}")
    return cases


def failed(cases: list[Case]) -> list[Case]:
    return [case for case in cases if case.outcome == "failed"]


def with_second_run(cases: list[Case], second: list[Case]) -> list[Case]:
    """Returns `cases`, where those that failed and passed in `second` have passed, and say why they had failed."""
    passed = {case.name for case in second if case.outcome == "passed"}
    return [
        dataclasses.replace(case, outcome="passed", reason="", first_failure=case.reason)
        if case.outcome == "failed" and case.name in passed
        else case
        for case in cases
    ]


def closing_line(cases: list[Case]) -> str:
    """Returns "N passed, N failed, N skipped"."""
    outcomes = [case.outcome for case in cases]
    return ", ".join(f"{outcomes.count(o)} {o}" for o in ("passed", "failed", "skipped"))


def report(cases: list[Case]) -> int:
    """Prints second runs, skips and failures with reasons, then the closing line. Returns the exit status."""
    for case in cases:
        if case.first_failure:
            print(f"PASSED ONLY WHEN RUN AGAIN {case.name}: {case.first_failure}")
    for outcome in ("skipped", "failed"):
        for case in cases:
            if case.outcome == outcome:
                print(f"{outcome.upper()} {case.name}: {case.reason}")
    print(closing_line(cases), flush=True)
    return 1 if failed(cases) else 0


# What stands before the name of a single case: a test target of Bazel's, or a module of pytest's.
_PART = re.compile(r"(//\S+|(?:\w+\.)*?test_\w+(?=\.))")


def slowest(cases: list[Case], count: int = 10) -> list[str]:
    """Returns a line for each of the parts that took longest: test targets, test modules, checks."""
    seconds: collections.Counter[str] = collections.Counter()
    for case in cases:
        part = _PART.match(case.name)
        seconds[part[0] if part else case.name] += case.seconds
    return [f"{took:8.1f} s  {part}" for part, took in seconds.most_common(count)]


def save(cases: list[Case], path: pathlib.Path) -> None:
    path.write_text(json.dumps([dataclasses.asdict(case) for case in cases], indent=1) + "\n")


def load(path: pathlib.Path) -> list[Case]:
    return [Case(**case) for case in json.loads(path.read_text())]
