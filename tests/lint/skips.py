"""Every skipped test stands on .ci/allowed_skips.txt, with the reason it may be skipped."""

import fnmatch
import pathlib

import tally


def parse(text: str) -> dict[str, str]:
    """Returns pattern -> why, from lines "pattern  # why".

    Raises:
      ValueError: a line gives no reason.
    """
    allowed = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, why = line.partition("  # ")
        if not why.strip():
            raise ValueError(f"allowed_skips.txt:{number}: no '  # reason' after the pattern")
        allowed[pattern.strip()] = why.strip()
    return allowed


def check(cases: list[tally.Case], allowed: dict[str, str]) -> list[str]:
    return [
        f"{case.name}: skipped ({case.reason}), and not on .ci/allowed_skips.txt"
        for case in cases
        if case.outcome == "skipped"
        and not any(fnmatch.fnmatchcase(case.name, pattern) for pattern in allowed)
    ]


def check_files(results: pathlib.Path, allowed: pathlib.Path) -> list[str]:
    return check(tally.load(results), parse(allowed.read_text()))
