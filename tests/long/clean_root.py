"""A machine with nothing on it: a root that debootstrap makes. It is kept in out/roots, and each user works on a copy."""

import hashlib
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

_KEPT = pathlib.Path(__file__).resolve().parents[2] / "out" / "roots"
# What apt, adduser and logrotate write for themselves, and caches.
_VOLATILE = re.compile(
    r"^/(var/log/|var/cache/|var/lib/(apt|dpkg|logrotate|systemd/deb-systemd)|etc/(passwd|group|shadow|gshadow|subuid|subgid)-$"
    r"|tmp/|run/|proc/|etc/ld.so.cache$)"
)


class Root:
    """A copy of a clean root, in which commands run as in a container: processes and mounts of their own."""

    def __init__(self, suite: str, include: str, mirror: Sequence[str] = ()):
        """`mirror`: of a distribution that is not this machine's, where its packages are, and the script that debootstrap makes
        it by. Whose keys are not here is known by the mirror's certificate alone."""
        clean = _KEPT / suite
        if not (clean / "made").exists():
            shutil.rmtree(clean, ignore_errors=True)
            _KEPT.mkdir(parents=True, exist_ok=True)
            command = [
                "debootstrap",
                "--variant=minbase",
                f"--include={include}",
                *(["--no-check-gpg"] if mirror else []),
                suite,
                clean,
                *mirror,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (clean / "made").touch()
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="epd-root-"))
        subprocess.run(["cp", "-a", f"{clean}/.", self.path], check=True)
        (self.path / "made").unlink()
        self.path.chmod(0o755)
        shutil.copy("/etc/resolv.conf", self.path / "etc" / "resolv.conf")

    def __enter__(self) -> "Root":
        return self

    def __exit__(self, *unused: object) -> None:
        shutil.rmtree(self.path)

    def command(self, line: str, user: str = "root") -> list[str]:
        as_user = (
            []
            if user == "root"
            else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        )
        inside = [
            "chroot",
            str(self.path),
            "env",
            "-i",
            "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"HOME=/home/{user}",
        ]
        apart = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            f"--mount-proc={self.path}/proc",
        ]
        return [*apart, *inside, *as_user, "sh", "-c", line]

    def run(self, line: str, user: str = "root", check: bool = True) -> subprocess.CompletedProcess:
        ended = subprocess.run(
            self.command(line, user), check=False, text=True, capture_output=True, timeout=900
        )
        if check and ended.returncode != 0:
            raise AssertionError(
                f"{line!r} as {user} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
            )
        return ended

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        (self.path / path.lstrip("/")).write_bytes(data)
        (self.path / path.lstrip("/")).chmod(mode)

    def files(self) -> dict[str, str]:
        """Every file with what it holds, but for what changes by itself."""
        found = {}
        for path in sorted(self.path.rglob("*")):
            name = "/" + str(path.relative_to(self.path))
            if _VOLATILE.match(name) or not (path.is_symlink() or path.exists()):
                continue
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[name] = "folder"
        return found
