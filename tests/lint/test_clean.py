"""Goal: a source counts as clean only as long as nothing has changed that its verdict depends on."""

import os
import pathlib

import clean
import pytest

_OPTIONS = ["-iquote", ".", "-iquotegenerated", "-O1"]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "generated").mkdir()
    (tmp_path / "a" / "source.cc").write_text('#include <vector>\n#include "a/outer.h"\n')
    (tmp_path / "a" / "outer.h").write_text('  #  include "inner.h"\n#include "made.pb.h"\n')
    (tmp_path / "a" / "inner.h").write_text('#include "a/outer.h"\nint x;\n')
    (tmp_path / "generated" / "made.pb.h").write_text("int y;\n")
    return tmp_path


def _looks(root: pathlib.Path, options: list[str], salt: bytes = b"") -> int:
    """How often a source is looked at that is asked for once."""
    looks: list[str] = []

    def look() -> list[str]:
        looks.append("a/source.cc")
        return []

    assert clean.Clean(root, root / "out", salt).check("a/source.cc", options, look) == []
    return len(looks)


def test_what_has_not_changed_is_not_looked_at_again(root: pathlib.Path) -> None:
    assert (_looks(root, _OPTIONS), _looks(root, _OPTIONS)) == (1, 0)


@pytest.mark.parametrize(
    "changed", ["a/source.cc", "a/outer.h", "a/inner.h", "generated/made.pb.h"]
)
def test_what_it_includes_counts(root: pathlib.Path, changed: str) -> None:
    assert _looks(root, _OPTIONS) == 1
    with (root / changed).open("a") as file:
        file.write("// more\n")
    assert _looks(root, _OPTIONS) == 1


def test_how_it_is_compiled_and_the_configuration_count(root: pathlib.Path) -> None:
    assert _looks(root, _OPTIONS) == 1
    assert _looks(root, [*_OPTIONS, "-DX"]) == 1
    assert _looks(root, _OPTIONS, salt=b"other") == 1


def test_what_had_complaints_is_looked_at_again(root: pathlib.Path) -> None:
    known = clean.Clean(root, root / "out", b"")
    for _ in range(2):
        assert known.check("a/source.cc", _OPTIONS, lambda: ["bad"]) == ["bad"]


def test_what_is_installed_counts(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"libgrpc-dev" in clean.installed()
    assert _looks(root, _OPTIONS) == 1
    monkeypatch.setattr(clean, "installed", lambda: b"another compiler")
    assert _looks(root, _OPTIONS) == 1


def test_it_remembers_for_the_user_and_forgets_what_is_of_no_use(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = clean.folder("tidy")
    assert folder == tmp_path / "epd" / "tidy"
    (folder / "used").touch()
    (folder / "old").touch()
    os.utime(folder / "old", (0, 0))
    assert [stamp.name for stamp in clean.folder("tidy").iterdir()] == ["used"]
