"""The release before this one, built from its source: what packages are upgraded from.

It is the newest tag v* of an earlier commit; while there is no tag, the commit named below. Its source is an archive of that commit, in
out/previous, and built there once, with what deploy/setup has left in .venv.
"""

import pathlib
import re
import shutil
import subprocess
from dataclasses import dataclass

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "out" / "previous"
# Of 23 Nov 2026, before groups had up to 1,024 ranks: another layout of messages with descriptors, the same protocol.
_COMMIT = "115c4758eb97679eb8f6b1ac37acecc938243100"
_PROGRAMS = {
    "epd": "//daemon:epd",
    "epd-worker": "//daemon/worker:epd-worker",
    "epctl": "//client/cli:epctl",
}
_LIBRARY, _WHEEL = "//client/c:libepd_client.so", "//client/python:wheel"


@dataclass(frozen=True)
class Previous:
    """Files of it."""

    commit: str
    release: str
    source: pathlib.Path
    programs: pathlib.Path  # A folder: epd, epd-worker, epctl.
    library: pathlib.Path  # libepd_client.so
    wheel: pathlib.Path


def _said(*command: object, folder: pathlib.Path = _ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


def _commit() -> str:
    tag = _said("git", "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^").stdout.strip()
    found = _said("git", "rev-parse", "--verify", "--quiet", f"{tag or _COMMIT}^{{commit}}")
    assert found.returncode == 0, (
        f"the previous release, {tag or _COMMIT}, is not in this clone: it needs the history (git fetch --unshallow)"
    )
    older = _said("git", "merge-base", "--is-ancestor", found.stdout.strip(), "HEAD^")
    assert older.returncode == 0, f"{found.stdout.strip()} is no ancestor of this commit"
    return found.stdout.strip()


def _unpack(commit: str, source: pathlib.Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    with subprocess.Popen(["git", "archive", commit], cwd=_ROOT, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", source], stdin=archive.stdout, check=True)
    assert archive.returncode == 0, f"git archive {commit} ended with {archive.returncode}"
    (source / ".venv").symlink_to(_ROOT / ".venv")


def provide() -> Previous:
    """Builds it, unless that was done before; an AssertionError says why it could not."""
    commit = _commit()
    source = _FOLDER / commit[:12]
    if not (source / ".venv").is_symlink():
        _unpack(commit, source)
    targets = [*_PROGRAMS.values(), _LIBRARY, _WHEEL]
    built = _said("bazel", "--max_idle_secs=60", "build", "--jobs=2", *targets, folder=source)
    assert built.returncode == 0, f"the build of {commit} failed:\n{built.stderr[-4000:]}"
    bazel_bin = source / "bazel-bin"
    programs = source / "out" / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, target in _PROGRAMS.items():
        (programs / name).unlink(missing_ok=True)  # Bazel's are read-only.
        shutil.copy(bazel_bin / target.removeprefix("//").replace(":", "/"), programs / name)
    release = re.search(r'^RELEASE = "(.*)"$', (source / "bazel/release.bzl").read_text(), re.M)[1]
    (wheel,) = (bazel_bin / "client/python").glob(f"epd-{release}-*.whl")
    library = bazel_bin / "client/c/libepd_client.so"
    return Previous(commit, release, source, programs, library, wheel)
