"""Goal: clang-tidy runs what .clang-tidy asks for, finds faults in sources and headers, and a run that cannot find any fails."""

import pathlib
import shutil

import pytest
import tidy
import tree

_LONG_FUNCTION = "int F(int x) {\n" + "  x += 1;\n" * 61 + "  return x;\n}\n"
_MOVED = (
    "#include <string>\n#include <utility>\n"
    "int F(std::string s) {\n  std::string t = std::move(s);\n"
    "  return static_cast<int>(s.size() + t.size());\n}\n"
)
_PARAMETERS = "int F(int a, int b, int c, int d, int e, int f) { return a + b + c + d + e + f; }\n"
_COMMAND = ["clang", "-std=c++20", "-iquote", ".", "-c", "FILE.cc", "-o", "x.o"]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copy(tree.ROOT / ".clang-tidy", tmp_path / ".clang-tidy")
    (tmp_path / "daemon").mkdir()
    (tmp_path / "daemon" / "good.h").write_text("int F(int x);\n")
    good = '#include "daemon/good.h"\n\nint F(int x) { return x; }\n'
    (tmp_path / "daemon" / "good.cc").write_text(good)
    return tmp_path


def test_a_clean_tree_passes(root: pathlib.Path) -> None:
    assert tidy.check(root, {"daemon/good.cc": _COMMAND}, root / "cache") == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (_LONG_FUNCTION, "readability-function-size"),
        (_PARAMETERS, "readability-function-size"),
        (_MOVED, "bugprone-use-after-move"),
        ("struct A {\n  A(int x);\n};\n", "google-explicit-constructor"),
        ("int F( {\n", "clang-diagnostic-error"),
    ],
    ids=["long", "parameters", "moved", "explicit", "syntax"],
)
def test_a_fault_is_found(root: pathlib.Path, text: str, rule: str) -> None:
    (root / "daemon" / "bad.cc").write_text(text)
    found = tidy.check(
        root, {"daemon/bad.cc": _COMMAND, "daemon/good.cc": _COMMAND}, root / "cache"
    )
    assert found and all("daemon/bad.cc:" in line for line in found)
    assert any(rule in line for line in found)


def test_a_fault_in_a_header_is_found(root: pathlib.Path) -> None:
    (root / "daemon" / "good.h").write_text("int F(int x);\nstruct A {\n  A(int x);\n};\n")
    (found,) = tidy.check(root, {"daemon/good.cc": _COMMAND}, root / "cache")
    assert "daemon/good.h:3:" in found


def test_what_was_clean_is_looked_at_again_when_what_it_includes_changes(
    root: pathlib.Path,
) -> None:
    commands = {"daemon/good.cc": _COMMAND}
    assert (
        tidy.check(root, commands, root / "cache")
        == tidy.check(root, commands, root / "cache")
        == []
    )
    (root / "daemon" / "good.h").write_text("int F(int x);\nstruct A {\n  A(int x);\n};\n")
    assert tidy.check(root, commands, root / "cache")


def test_a_configuration_that_finds_nothing_fails_the_run(root: pathlib.Path) -> None:
    (root / ".clang-tidy").write_text("Checks: >\n  -*,\n  bugprone-use-after-move\n")
    found = tidy.check(root, {"daemon/good.cc": _COMMAND}, root / "cache")
    assert found == [
        f"daemon/good.{suffix}: clang-tidy does not find the fault planted there"
        for suffix in ("cc", "h")
    ]


def test_a_check_that_clang_tidy_does_not_know_fails_the_run(root: pathlib.Path) -> None:
    config = root / ".clang-tidy"
    config.write_text(config.read_text().replace("infinite-loop", "infinite-lop"))
    (found,) = tidy.check(root, {"daemon/good.cc": _COMMAND}, root / "cache")
    assert found == ".clang-tidy: clang-tidy does not run bugprone-infinite-lop"


def test_a_run_over_no_file_fails(root: pathlib.Path) -> None:
    assert tidy.check(root, {}, root / "cache") == [
        "clang-tidy has no source to check that has a header"
    ]
