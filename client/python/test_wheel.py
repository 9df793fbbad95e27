"""Goal: the wheel says the truth about itself, and is all that a machine needs: nothing of Debian's beside it, no root."""

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest
import running_epd

_ROOT = running_epd.ROOT
_PROGRAMS = ("epd", "epd-worker", "epctl")
_MAX_BYTES = 40e6
_TAG = re.compile(r"-py3-none-manylinux_(\d+)_(\d+)_x86_64\.whl$")
# GCC 12's, which manylinux_2_36 allows (PEP 600: what the distributions of that glibc have).
_RUNTIME = {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
_OF_THE_SYSTEM = re.compile(
    r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so\.\d+$"
)
_NOBODY = 65534


def _wheel() -> pathlib.Path:
    release = re.search(r'^RELEASE = "(.*)"$', (_ROOT / "bazel/release.bzl").read_text(), re.M)[1]
    (wheel,) = (_ROOT / "bazel-bin" / "client" / "python").glob(f"epd-{release}-*.whl")
    return wheel


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(_wheel()) as archive:
        archive.extractall(folder)
    return folder


def _elf_files(folder: pathlib.Path) -> list[pathlib.Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def _read_elf(option: str, file: pathlib.Path) -> str:
    command = ["readelf", "--wide", option, file]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def _untrue(folder: pathlib.Path, glibc: tuple[int, ...]) -> list[str]:
    """What in the folder needs more than a system with this glibc has."""
    newest = {"GLIBC": glibc, **_RUNTIME}
    elfs = _elf_files(folder)
    carried = {file.name for file in elfs}
    found = []
    for file in elfs:
        if "Machine:                           Advanced Micro Devices X86-64" not in _read_elf(
            "-h", file
        ):
            found.append(f"{file.name}: is not for x86-64")
        for kind, text in re.findall(r"Name: (\w+)_([\d.]+)\b", _read_elf("-V", file)):
            version = tuple(int(part) for part in text.split("."))
            if kind in newest and version > newest[kind]:
                found.append(f"{file.name}: needs {kind}_{text}")
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", _read_elf("-d", file)):
            if needed not in carried and not _OF_THE_SYSTEM.match(needed):
                found.append(f"{file.name}: needs {needed}, which is not in the wheel")
    return found


def test_its_tag_is_true(unpacked: pathlib.Path) -> None:
    major, minor = _TAG.search(_wheel().name).groups()
    assert _untrue(unpacked, (int(major), int(minor))) == []
    info = next(unpacked.glob("*.dist-info"))
    assert f"Tag: py3-none-manylinux_{major}_{minor}_x86_64" in (info / "WHEEL").read_text()


def test_an_older_tag_or_a_library_that_is_left_out_would_be_a_lie(
    unpacked: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert any("needs GLIBC_2." in line for line in _untrue(unpacked, (2, 28)))
    shutil.copytree(unpacked / "epd" / "bin", tmp_path / "bin")
    assert "epd: needs libgrpc++.so.1.51, which is not in the wheel" in _untrue(tmp_path, (2, 36))


def test_it_is_small_and_requires_neither_jax_nor_torch(unpacked: pathlib.Path) -> None:
    assert _wheel().stat().st_size < _MAX_BYTES
    metadata = email.message_from_string(next(unpacked.glob("*.dist-info/METADATA")).read_text())
    required = metadata.get_all("Requires-Dist")
    assert all("; extra ==" in line for line in required), required
    assert set(metadata.get_all("Provides-Extra")) == {"jax", "flax", "torch", "cluster"}


def test_every_library_that_is_given_on_comes_with_its_licence(unpacked: pathlib.Path) -> None:
    licenses = next(unpacked.glob("*.dist-info/licenses"))
    notices = (licenses / "NOTICES.txt").read_text()
    for library in (unpacked / "epd" / "lib" / "epd").iterdir():
        (line,) = [
            line
            for line in notices.splitlines()
            if re.search(rf"[ ,]{re.escape(library.name)}(,|$)", line)
        ]
        assert "opyright" in (licenses / line.split()[0] / "copyright").read_text(errors="replace")
    assert (licenses / "common-licenses" / "Apache-2.0").exists()


def test_what_is_compiled_in_comes_with_its_licence(unpacked: pathlib.Path) -> None:
    licenses = next(unpacked.glob("*.dist-info/licenses"))
    notices = (licenses / "NOTICES.txt").read_text()
    for package in ("libcli11-dev", "libxxhash-dev", "nanopb"):
        assert re.search(rf"^{package} \S+: compiled into ", notices, re.M), notices
        assert "opyright" in (licenses / package / "copyright").read_text(errors="replace")
    assert "XLA's FFI headers, of jaxlib, Apache License 2.0" in notices


# The environment of the tests that follow: a user's, on a machine without Debian's libraries of epd. In a mount namespace of
# their own /dev/null lies over each, $PLACE over /opt.
_ENTER = """
set -e
mount --make-rprivate /
mount --bind "$PLACE" /opt
mount --bind "$PYTHON" /opt/python
mount --bind "$PACKAGES" /opt/packages
mount -t tmpfs tmpfs /run
while read -r library; do mount --bind /dev/null "$library"; done <"$PLACE/masked"
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs env -i PATH=/opt/venv/bin:/usr/bin:/bin \
  LD_LIBRARY_PATH=/opt/python/lib HOME=/opt/home XDG_RUNTIME_DIR=/opt/home JAX_PLATFORMS=cpu "$@"
"""


class Machine:
    """Where a wheel is installed by pip into an environment of its own, by a user who is nobody special."""

    def __init__(self, place: pathlib.Path, unpacked: pathlib.Path):
        self._place = place
        base = pathlib.Path(sys.base_prefix)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        self._environment = {
            **os.environ,
            "PLACE": str(place),
            "PYTHON": str(base),
            "PACKAGES": packages,
        }
        for name in ("python", "packages", "home", "wheel"):
            (place / name).mkdir()
        shutil.copy(_wheel(), place / "wheel")
        os.chown(place / "home", _NOBODY, _NOBODY)
        (place / "home").chmod(0o700)
        place.chmod(0o777)
        masked = [
            path.resolve()
            for library in (unpacked / "epd" / "lib" / "epd").iterdir()
            for path in pathlib.Path("/usr/lib/x86_64-linux-gnu").glob(library.name)
            # Python's own modules need these.
            if not library.name.startswith(
                ("libz.", "libssl.", "libcrypto.", "libbz2.", "liblzma.")
            )
        ]
        assert any("libgrpc" in path.name for path in masked)
        (place / "masked").write_text("".join(f"{path}\n" for path in masked))

    def write(self, name: str, text: str) -> None:
        (self._place / name).write_text(text)

    def take(self, file: pathlib.Path) -> None:
        shutil.copy(file, self._place)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess:
        ended = subprocess.run(
            ["unshare", "--mount", "bash", "-c", _ENTER, "bash", *command],
            text=True,
            capture_output=True,
            timeout=120,
            env=self._environment,
            check=False,
        )
        assert not check or ended.returncode == 0, ended.stdout + ended.stderr
        return ended


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, unpacked: pathlib.Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("only root can hide the system's libraries")
    place = pathlib.Path(tmp_path_factory.mktemp("machine"))
    made = Machine(place, unpacked)
    made.run("/opt/python/bin/python3", "-m", "venv", "/opt/venv")
    pip = ("python", "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-index")
    made.run(*pip, f"/opt/wheel/{_wheel().name}")
    yield made


def test_programs_run_without_the_systems_libraries(machine: Machine) -> None:
    for program in _PROGRAMS:
        ended = machine.run(program, "--help", check=False)
        assert "usage" in (ended.stdout + ended.stderr).lower(), ended
    machine.take(running_epd.program("epctl"))
    assert machine.run("/opt/epctl", "version", check=False).returncode == 127, "nothing was hidden"


def test_what_an_extra_brings_is_named_first(machine: Machine) -> None:
    for extra, needed in (("jax", "jax"), ("torch", "torch"), ("cluster", "grpc")):
        ended = machine.run("python", "-c", f"import epd.{extra}", check=False)
        last = ended.stderr.strip().splitlines()[-1]
        assert last.startswith(
            f"ImportError: pip install 'epd[{extra}]': epd.{extra} needs {needed}"
        )


def test_two_ranks_exchange_through_the_daemon_that_the_wheel_brought(machine: Machine) -> None:
    machine.take(_ROOT / "tests/integration/jax/scripts/pair_of_wheel.py")
    ended = machine.run("env", "PACKAGES=/opt/packages", "python", "/opt/pair_of_wheel.py")
    started = re.search(r"starting a private one: (\S+) ", ended.stderr)
    assert re.fullmatch(r"/opt/venv/lib/\S+/site-packages/epd/bin/epd", started[1])
    assert "cluster says 0." in ended.stdout and re.search(
        r"^wheel/pair/0 +ready", ended.stdout, re.M
    ), ended.stdout


# One process that looks for a daemon in vain, three times.
_NOBODY_THERE = """
import os, sys, tempfile
sys.path.append("/opt/packages")
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp()  # Another test's private daemon may still be there.
import jax.numpy as jnp
from epd.jax import EpError, Group
for name, value in (("AUTOSTART", "0"), ("SOCKET", "/opt/none.sock"), ("PROGRAM", "/opt/none")):
    os.environ["EPD_" + name] = value
    try:
        Group.join(name, ranks=1, rank=0, job="wheel", num_experts=1, max_tokens_per_rank=1, recv_capacity_per_rank=1,
                   hidden_dim=8, max_token_dtype=jnp.float32)
    except EpError as error:
        print(error)
    del os.environ["EPD_" + name]
"""


def test_where_there_is_no_daemon_the_remedy_comes_first(machine: Machine) -> None:
    machine.write("nobody_there.py", _NOBODY_THERE)
    said = machine.run("python", "/opt/nobody_there.py").stdout
    forbidden, absent, no_program = said.splitlines()
    assert forbidden.startswith("[epd:UNAVAILABLE] unset EPD_AUTOSTART")
    assert absent.startswith("[epd:UNAVAILABLE] start one there with 'epd --socket=/opt/none.sock'")
    assert no_program.startswith("[epd:FAILED_PRECONDITION] set EPD_PROGRAM")
