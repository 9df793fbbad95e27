"""Installs, uses, upgrades and removes the packages in clean roots that debootstrap makes: see usage.

The roots are kept in out/roots; each test works on a copy. What they are upgraded from is the release before this one, built in
out/previous (previous_release.py). What needs a network is apt in the roots, and pip.
"""

import argparse
import contextlib
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import previous_release
from clean_root import Root

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LIBRARY = _ROOT / "bazel-bin/client/c/libepd_client.so"
_RELEASE = re.search(r'^RELEASE = "(.*)"$', (_ROOT / "bazel/release.bzl").read_text(), re.M)[1]
# What dpkg is told of a previous release that has the version of this one.
_OLDER = "0.0.9"
_APT = (
    "env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0"
)
# Of who stands between this machine and PyPI, where somebody does.
_ADDED_CERTIFICATES = pathlib.Path("/usr/local/share/ca-certificates")


class Daemon:
    """A process in a root, from when epctl finds it there; ended at the end of the block."""

    def __init__(self, root: Root, line: str, user: str):
        self._process = subprocess.Popen(
            root.command(line, user), stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 30
        while root.run("epctl health --node", check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{line!r} does not serve: {self._end()}")
            time.sleep(0.1)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *unused: object) -> None:
        self._end()

    def _end(self) -> str:
        """What it has said. All processes of its namespace end with the first one, which outlives unshare: who changes the user, as
        setpriv does, is not told of a parent's end any more."""
        children = pathlib.Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # Ended by itself.
            for first in children.read_text().split():
                os.kill(int(first), signal.SIGKILL)
        self._process.kill()
        return self._process.communicate(timeout=30)[1]


def _package(folder: pathlib.Path) -> bytes:
    out = folder / "epd.deb"
    command = [_ROOT / "deploy/debian/package", "--out", out, "--version", _RELEASE]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out.read_bytes()


def _previous_package(folder: pathlib.Path, previous: previous_release.Previous) -> bytes:
    """Made by its own recipe."""
    out = folder / "previous.deb"
    version = previous.release if previous.release != _RELEASE else _OLDER
    command = [previous.source / "deploy/debian/package", "--out", out, "--version", version]
    subprocess.run([*command, "--bin", previous.programs], check=True, stdout=subprocess.DEVNULL)
    return out.read_bytes()


def _digest(file: pathlib.Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _service(root: Root) -> str:
    """What systemd would start."""
    text = (root.path / "lib/systemd/system/epd.service.d/debian.conf").read_text()
    return re.findall(r"^ExecStart=(.+)$", text, re.M)[-1].replace("$$", "$")


def _served(root: Root, example: bytes, library: pathlib.Path) -> None:
    """The service serves members of its group, who have this example and library, and nobody else."""
    root.write("/usr/local/bin/exchange_example", example, 0o755)
    root.write("/usr/local/bin/libepd_client.so", library.read_bytes(), 0o755)
    root.run("mkdir -p /run/epd && chown epd:epd /run/epd")  # RuntimeDirectory=
    with Daemon(root, "exec " + _service(root), "epd"):
        assert f"epd:    {_version_of(root)}" in root.run("epctl version").stdout
        root.run("exchange_example --ranks=2 --steps=2", user="alice")
        refused = root.run("exchange_example --ranks=2 --steps=2", user="eve", check=False)
        assert refused.returncode != 0, refused
        # The library of 115c4758eb97 says UNAVAILABLE where the refusal comes before its first word.
        code = "PERMISSION_DENIED" if library == _LIBRARY else "[epd:"
        assert code in refused.stdout + refused.stderr, refused


def _version_of(root: Root) -> str:
    """Of the programs."""
    return root.run("epd --version").stdout.split()[1]


def _example(folder: pathlib.Path, source: pathlib.Path, library: pathlib.Path) -> bytes:
    """Compiled with the headers of this source."""
    out = folder / "exchange_example"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-pthread",
        f"-I{source}",
        source / "client/c/example/exchange_example.cc",
    ]
    libraries = [f"-L{library.parent}", "-lepd_client", "-Wl,-rpath,/usr/local/bin"]
    subprocess.run([*command, "-o", out, *libraries], check=True)
    return out.read_bytes()


def debian(folder: pathlib.Path) -> None:
    """Installed, used, upgraded with its settings kept, its log rotated, purged: nothing is left. What was compiled with the previous
    release, and runs with its library, goes on with this daemon."""
    previous = previous_release.provide()
    theirs = _example(folder, previous.source, previous.library)
    ours = _example(folder, _ROOT, _LIBRARY)
    with Root("bookworm", "adduser,logrotate") as root:
        old, new = _previous_package(folder, previous), _package(folder)
        root.run(f"{_APT} update")
        control = subprocess.run(
            ["dpkg-deb", "-f", folder / "epd.deb", "Depends"],
            check=True,
            text=True,
            capture_output=True,
        ).stdout
        needed = [name.split()[0] for name in control.split(",")]
        root.run(f"{_APT} install {shlex.join(needed)}")
        for user in ("alice", "eve"):
            root.run(f"adduser --quiet --disabled-password --gecos '' {user}")
        before = root.files()

        root.write("/tmp/epd.deb", old)
        root.run(f"{_APT} install /tmp/epd.deb")
        root.run("adduser --quiet alice epd")
        assert _digest(root.path / "usr/bin/epd") == _digest(previous.programs / "epd")
        _served(root, theirs, previous.library)

        root.run("echo '# mine' >>/etc/epd/epd.conf")
        root.write("/tmp/epd.deb", new)
        root.run(f"{_APT} install /tmp/epd.deb")
        installed = root.run("dpkg-query -W -f='${Version} ${Status}' epd").stdout
        assert installed == f"{_RELEASE} install ok installed", installed
        assert (root.path / "etc/epd/epd.conf").read_text().endswith("# mine\n")
        assert _digest(root.path / "usr/bin/epd") != _digest(previous.programs / "epd")
        _served(root, theirs, previous.library)
        _served(root, ours, _LIBRARY)

        root.run("mkdir -p /var/log/epd && chown epd:epd /var/log/epd")  # LogsDirectory=
        root.run("echo line >/var/log/epd/epd.log", user="epd")
        root.run("logrotate --force /etc/logrotate.d/epd")
        assert (root.path / "var/log/epd/epd.log.1").exists()

        root.run(f"{_APT} remove epd")
        assert (root.path / "etc/epd/epd.conf").exists(), "removing keeps the settings"
        root.run(f"{_APT} purge epd")
        for path in ("usr/local/bin/exchange_example", "usr/local/bin/libepd_client.so"):
            (root.path / path).unlink()
        after = root.files()
        left = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        assert not left, f"left behind or changed: {sorted(left)}"
        assert not (root.path / "var/log/epd").exists()


def container(folder: pathlib.Path) -> None:
    """The recipe's steps, in the root that its image begins with, and what it starts."""
    text = (_ROOT / "deploy/container/Containerfile").read_text().replace("\\\n", "")
    steps = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert steps[0][0] == "FROM" and "debian:12" in steps[0][1], steps[0]
    with Root("bookworm", "adduser,logrotate") as root:
        _package(folder)
        started: list[str] = []
        for word, rest in steps[1:]:
            if word == "COPY":
                source, target = rest.split()
                shutil.copy(folder / source, root.path / target.lstrip("/"))
            elif word == "RUN":
                root.run(rest)
            else:
                assert word in ("ENTRYPOINT", "CMD"), f"this test does not know {word}"
                started += re.findall(r'"(.*?)"', rest)
        with Daemon(root, "exec " + shlex.join(started), "root"):
            assert _RELEASE in root.run("epctl version").stdout
        assert not (root.path / "tmp/epd.deb").exists()


def wheel(folder: pathlib.Path) -> None:
    """On the Python of Debian 13, as an ordinary user: upgraded from the previous release, with JAX from PyPI two ranks, also of one
    release with the daemon of the other; removed, nothing of it is left."""
    del folder
    previous = previous_release.provide()
    (file,) = (_ROOT / "bazel-bin/client/python").glob(f"epd-{_RELEASE}-*.whl")
    pair = (_ROOT / "tests/integration/jax/scripts/pair_of_wheel.py").read_bytes()
    with Root("trixie", "adduser,python3-venv,ca-certificates") as root:
        root.run("adduser --quiet --disabled-password --gecos '' alice")
        for added in _ADDED_CERTIFICATES.glob("*.crt"):
            root.write(str(added), added.read_bytes())
        root.run("update-ca-certificates")
        root.write(f"/tmp/{file.name}", file.read_bytes())
        root.write("/tmp/pair.py", pair)
        root.run("mkdir /tmp/previous")
        root.write(f"/tmp/previous/{previous.wheel.name}", previous.wheel.read_bytes())
        root.run("python3 -m venv ~/venv", user="alice")
        before = root.run("find ~/venv -not -path '*/pip/*' | sort", user="alice").stdout
        pip = "~/venv/bin/pip --disable-pip-version-check -q"
        programs = "PATH=$HOME/venv/bin:$PATH; epd --version && epctl --help"
        root.run(f"{pip} install /tmp/previous/{previous.wheel.name}", user="alice")
        root.run(programs, user="alice")
        # Of the same version pip keeps what is there, unless told not to.
        upgrade = "--upgrade" if previous.release != _RELEASE else "--force-reinstall"
        root.run(f"{pip} install {upgrade} /tmp/{file.name}", user="alice")
        root.run(programs, user="alice")
        installed = root.path / "home/alice/venv/lib/python3.13/site-packages/epd/bin/epd"
        assert _digest(installed) != _digest(previous.programs / "epd"), "not upgraded"
        assert root.run(f"{pip} uninstall -y epd", user="alice").returncode == 0
        left = root.run("find ~/venv -not -path '*/pip/*' | sort", user="alice").stdout
        assert left == before, f"left behind: {set(left.split()) - set(before.split())}"
        root.run(f"{pip} install '/tmp/{file.name}[jax,cluster]'", user="alice")
        _finds_nvidias_wheels(root)
        said = root.run("PATH=$HOME/venv/bin:$PATH python /tmp/pair.py", user="alice")
        assert re.search(r"^wheel/pair/0 +ready", said.stdout, re.M), said
        _mixed(root, previous)
        root.run(f"{pip} uninstall -y epd", user="alice")
        left = root.run("find ~/venv -path '*epd*'", user="alice").stdout
        assert not left, left


def _finds_nvidias_wheels(root: Root) -> None:
    """NCCL and NCCL EP where nvidia-nccl-cu12 and nccl-extensions put them beside epd. What lies there is no library, of which the
    process that doctor asks says so."""
    packages = "venv/lib/python3.13/site-packages"
    libraries = ("nvidia/nccl/lib/libnccl.so.2", "nccl/ep/lib/cu12/libnccl_ep.so")
    for library in libraries:
        at = f"~/{packages}/{library}"
        root.run(f"mkdir -p $(dirname {at}) && touch {at}", user="alice")
    probe = f"~/{packages}/epd/bin/epd-worker --probe-cuda="
    said = root.run(f"{probe} | tr -cd '[:print:]'", user="alice").stdout
    for library in libraries:
        assert f"{packages}/{library}: file too short" in said, said
    root.run(f"cd ~/{packages} && rm -r nvidia nccl", user="alice")


def _mixed(root: Root, previous: previous_release.Previous) -> None:
    """Two ranks of the previous wheel with this daemon, in ~/venv, and the other way round: each runs what its own release has."""
    theirs = previous.source / "tests/integration/jax/scripts/pair_of_wheel.py"
    root.write("/tmp/pair_of_previous.py", theirs.read_bytes())
    root.run("python3 -m venv ~/previous", user="alice")
    root.run(
        f"~/previous/bin/pip install -q --no-deps /tmp/previous/{previous.wheel.name}", "alice"
    )
    packages = "{}/lib/python3.13/site-packages"
    for client, daemon, pair in (
        ("previous", "venv", "pair_of_previous.py"),
        ("venv", "previous", "pair.py"),
    ):
        program = packages.format(daemon) + "/epd/bin/epd"
        environment = f"EPD_PROGRAM=$HOME/{program} PACKAGES=$HOME/{packages.format('venv')}"
        said = root.run(
            f"{environment} PATH=$HOME/{client}/bin:$PATH python /tmp/{pair}", user="alice"
        )
        assert re.search(r"^wheel/pair/0 +ready", said.stdout, re.M), (client, said)
        started = re.findall(r"starting a private one: (\S+)", said.stderr)
        assert {path.endswith(f"/{program}") for path in started} == {True}, (client, said.stderr)


_TESTS: dict[str, Callable[[pathlib.Path], None]] = {
    "debian": debian,
    "container": container,
    "wheel": wheel,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/long/packages.py", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[[], *_TESTS], help="default: all")
    chosen = parser.parse_args().what or list(_TESTS)
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print(
            "tests/long/packages.py: run as root, with debootstrap installed: deploy/setup",
            file=sys.stderr,
        )
        return 2
    status = 0
    for name in chosen:
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="epd-packages-") as folder:
                _TESTS[name](pathlib.Path(folder))
            verdict = "passed"
        except (AssertionError, subprocess.CalledProcessError) as error:
            print(error)
            verdict, status = "FAILED", 1
        print(f"{name}: {verdict} in {time.monotonic() - started:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
