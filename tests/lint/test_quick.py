"""Goal: .ci/quick looks at what a change touches, committed or not, and asks Bazel for the unit tests that depend on it."""

import pathlib
import subprocess

import pytest
import quick


def _git(root: pathlib.Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    _git(tmp_path, "init", "--initial-branch=main")
    for name in ("kept", "changed", "removed"):
        (tmp_path / name).write_text(name)
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "--message=all")
    _git(tmp_path, "checkout", "-b", "branch")
    return tmp_path


def test_changed_files_are_those_of_commits_of_the_tree_and_new_ones(root: pathlib.Path) -> None:
    assert quick.changed(root, "main") == []
    (root / "committed").write_text("")
    _git(root, "add", ".")
    _git(root, "commit", "--message=more")
    (root / "changed").write_text("otherwise")
    (root / "new").write_text("")
    (root / "removed").unlink()
    assert quick.changed(root, "main") == ["changed", "committed", "new"]


def test_what_main_got_meanwhile_is_not_of_this_branch(root: pathlib.Path) -> None:
    _git(root, "checkout", "main")
    (root / "theirs").write_text("")
    _git(root, "add", ".")
    _git(root, "commit", "--message=theirs")
    _git(root, "checkout", "branch")
    assert quick.changed(root, "main") == []


@pytest.mark.parametrize(
    ("paths", "query"),
    [
        (["README.md", "client/python/epd/jax/group.py"], None),
        (
            ["daemon/core/ids.h", "README.md"],
            'tests(rdeps(//tests/unit/..., "daemon/core/ids.h"))',
        ),
        (
            ["client/c/BUILD", "proto/epd/v1/node.proto"],
            'tests(rdeps(//tests/unit/..., //client/c:* + "proto/epd/v1/node.proto"))',
        ),
        (["bazel/cc.bzl", "daemon/core/ids.h"], "tests(//tests/unit/...)"),
    ],
)
def test_unit_tests_are_those_that_depend_on_the_change(
    paths: list[str], query: str | None
) -> None:
    assert quick.query(paths) == query
