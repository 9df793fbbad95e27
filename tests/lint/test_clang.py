"""Goal: clang++ with the flags of --config=clang refuses what it should in a test's source, and a run that could not find any fails."""

import pathlib

import clang
import pytest
import tree

_FLAGS = [
    flag.removeprefix("--copt=")
    for line in (tree.ROOT / ".bazelrc").read_text().splitlines()
    if line.startswith("build:clang ")
    for flag in line.split()
    if flag.startswith("--copt=")
]
_COMMAND = ["clang", *_FLAGS, "-Wall", "-Werror", "-iquote", ".", "-c", "FILE.cc", "-o", "x.o"]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "good.h").write_text("int F(int x);\n")
    good = '#include "tests/good.h"\n\nint F(int x) { return x; }\n'
    (tmp_path / "tests" / "good.cc").write_text(good)
    return tmp_path


def test_a_clean_tree_passes(root: pathlib.Path) -> None:
    assert clang.check(root, {"tests/good.cc": _COMMAND}, root / "cache") == []


def test_a_source_in_c_is_read_as_c(root: pathlib.Path) -> None:
    (root / "tests" / "in_c.c").write_text("int F(void) { int class = 1; return class; }\n")
    assert clang.check(root, {"tests/in_c.c": _COMMAND}, root / "cache") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (clang._UNGUARDED, "requires holding"),
        ("void F() { int x; }\n", "-Wunused-variable"),
        ("int F() { return y; }\n", "undeclared identifier"),
    ],
    ids=["unguarded", "warning", "syntax"],
)
def test_a_fault_is_found(root: pathlib.Path, text: str, said: str) -> None:
    (root / "tests" / "bad.cc").write_text(text)
    (found,) = clang.check(
        root, {"tests/bad.cc": _COMMAND, "tests/good.cc": _COMMAND}, root / "cache"
    )
    assert found.startswith("tests/bad.cc:") and said in found


def test_what_was_clean_is_looked_at_again_when_what_it_includes_changes(
    root: pathlib.Path,
) -> None:
    commands = {"tests/good.cc": _COMMAND}
    assert (
        clang.check(root, commands, root / "cache")
        == clang.check(root, commands, root / "cache")
        == []
    )
    (root / "tests" / "good.h").write_text("int F(int x)\n")
    assert clang.check(root, commands, root / "cache")


def test_flags_that_find_nothing_fail_the_run(root: pathlib.Path) -> None:
    (found,) = clang.check(
        root, {"tests/good.cc": ["clang", "-iquote", ".", "-c", "FILE.cc"]}, root / "cache"
    )
    assert found.startswith("clang++ does not refuse a field read without its lock")


def test_a_run_over_no_file_fails(root: pathlib.Path) -> None:
    assert clang.check(root, {}, root / "cache") == ["clang++ has no source to check"]


def test_sources_with_locks_are_those_that_name_one_or_include_a_header_of_tests_that_does(
    root: pathlib.Path,
) -> None:
    (root / "daemon").mkdir()
    (root / "daemon" / "product.h").write_text("#include <absl/synchronization/mutex.h>\n")
    (root / "tests" / "locked.h").write_text("class Fake { std::mutex lock_; };\n")
    sources = {
        "tests/good.cc": None,
        "tests/product_only.cc": '#include "daemon/product.h"\n',
        "tests/includes.cc": '#include "tests/locked.h"\n',
        "tests/names.cc": "absl::Mutex lock;\n",
    }
    for source, text in sources.items():
        if text:
            (root / source).write_text(text)
    found = clang.with_locks(root, dict.fromkeys(sources, _COMMAND))
    assert sorted(found) == ["tests/includes.cc", "tests/names.cc"]
