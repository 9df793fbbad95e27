"""Goal: a number that no line explains, a line that no text says or no test provokes, and a fault without a number are complaints."""

import error_numbers
import pytest
import tree

_GOOD = {
    "client/cli/error_table.cc": '{3, "INVALID_ARGUMENT", "a",\n "b", "c", "tests/a_test.cc"},\n'
    '{1001, "ABORTED", "a", "b "\n "c", "d", "tests/b_test.cc"},',
    "daemon/x.cc": 'absl::StrCat("join again [EPD-1001]")',
    "tests/a_test.cc": "EXPECT_EQ(code, Code::kInvalidArgument);",
    "tests/b_test.cc": 'Told("a rank is killed", "all", reports)',
    "deploy/faults.md": "| a rank is killed | all | ABORTED | join again [EPD-1001] |",
}


def test_a_table_whose_lines_are_said_and_provoked_is_good() -> None:
    assert error_numbers.check(_GOOD) == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("client/c/y.cc", '"[EPD-1002]"', "which client/cli/error_table.cc does not have"),
        ("daemon/x.cc", '"join again"', "no text says EPD-1001"),
        ("tests/a_test.cc", "", "does not provoke EPD-0003"),
        ("tests/b_test.cc", 'Told("another fault")', "does not provoke EPD-1001"),
        ("deploy/faults.md", "| a rank is killed | all | ABORTED | x |", "has no number"),
        ("client/cli/error_table.cc", "", "no errors are found here"),
    ],
)
def test_what_is_missing_is_a_complaint(path: str, text: str, complaint: str) -> None:
    files: tree.Tree = {**_GOOD, path: text}
    assert any(complaint in found for found in error_numbers.check(files))


def test_a_number_that_stands_twice_is_a_complaint() -> None:
    table = _GOOD["client/cli/error_table.cc"]
    twice = {**_GOOD, "client/cli/error_table.cc": table + table}
    assert any("only rise" in found for found in error_numbers.check(twice))
