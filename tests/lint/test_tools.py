"""Goal: each outside linter, run the way .ci/run runs it, fails on a known-bad input and passes a good one."""

import pathlib
import shutil

import pytest
import tools
import tree

_CONFIGS = (".clang-format", ".clang-tidy", ".ruff.toml")


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in _CONFIGS:
        shutil.copy(tree.ROOT / name, tmp_path / name)
    return tmp_path


def _write(root: pathlib.Path, name: str, text: str) -> list[str]:
    (root / name).write_text(text)
    return [name]


def test_clang_format(root: pathlib.Path) -> None:
    assert tools.clang_format(root, _write(root, "good.cc", "int F() { return 1; }\n")) == []
    found = tools.clang_format(root, _write(root, "bad.cc", "int F( ) {return 1;}\n"))
    assert any("bad.cc:1" in line for line in found)


def test_ruff_format(root: pathlib.Path) -> None:
    assert tools.ruff(root, _write(root, "good.py", "x = 1\n")) == []
    assert tools.ruff(root, _write(root, "bad.py", "x=1\n"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import os\n", "F401"),
        ("try:\n    x = 1\nexcept:\n    x = 2\n", "E722"),
        ("def f(x=[]):\n    return x\n", "B006"),
    ],
)
def test_ruff_check(root: pathlib.Path, text: str, rule: str) -> None:
    found = tools.ruff(root, _write(root, "bad.py", text))
    assert any(rule in line for line in found)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def f(x):\n    return x\n", "no-untyped-def"),
        ("def f(x: int) -> str:\n    return x\n", "return-value"),
        ("def f(x: str | None) -> int:\n    return len(x)\n", "arg-type"),
        ("import epd.good\n\nepd.good.g()\n", "attr-defined"),
    ],
)
def test_mypy(root: pathlib.Path, text: str, rule: str) -> None:
    (root / "client" / "python" / "epd").mkdir(parents=True)
    (root / "tests" / "lint").mkdir(parents=True)
    shutil.copy(tree.ROOT / "tests" / "lint" / "mypy.ini", root / "tests" / "lint")
    _write(root, "client/python/epd/__init__.py", "")
    _write(root, "client/python/epd/good.py", "def f(x: int) -> int:\n    return x\n")
    assert tools.mypy(root) == []
    _write(root, "client/python/epd/bad.py", text)
    found = tools.mypy(root)
    assert any("epd/bad.py:" in line and rule in line for line in found)


def test_shellcheck_checks_scripts_without_a_suffix(root: pathlib.Path) -> None:
    good = '#!/usr/bin/env bash\nset -e\ncp -- "$1" "$2"\n'
    bad = "#!/usr/bin/env bash\nset -e\ncp $1 $2\n"
    assert tools.shellcheck(root, _write(root, "good", good)) == []
    assert any("SC2086" in line for line in tools.shellcheck(root, _write(root, "bad", bad)))


def test_a_tool_that_is_not_installed_is_a_complaint(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = _write(root, "good.cc", "int F() { return 1; }\n")
    monkeypatch.setenv("PATH", str(root))
    assert tools.clang_format(root, paths) == [
        "clang-format is not installed; deploy/setup installs it"
    ]
