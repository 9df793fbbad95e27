"""A visit to a machine with a GPU, rehearsed: the bundle, unpacked on a clean Ubuntu 24.04 that has Python and neither make, a
compiler nor JAX, runs tests/gpu/run within its budget, over the fake driver.

It has two devices. What is not there is skipped with its reason: JAX, the tools, an NCCL for ranks on one GPU. The rest has to
pass: epd with its workers and ranks in one, two and four processes, on one device and on both, directly and by a fake NCCL; and
each program, of which the benchmark moves an nth of its bytes. A second visit that goes on from a report that was cut short ends
it.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

from clean_root import Root

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MIRROR = ("https://archive.ubuntu.com/ubuntu", "gutsy")
_FAKES = [
    _ROOT / "bazel-bin/tests/fakes/cuda" / name
    for name in ("for_programs/libcuda.so.1", "libnccl.so.2")
]
_BUDGET = 540
# A machine's own; the fake's others are Debian's.
_RUNTIME = re.compile(r"lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so|ld-linux")
_RUN_HERE = re.compile("api streams |T|kernels$")
_REASONS = re.compile(
    "has no JAX that sees a GPU|no libnccl.so.2|NCCL refuses two ranks on one GPU|no compute-sanitizer|no nvidia-cuda-mps-control|has no NumPy"
)


def _unpack(root: Root) -> None:
    archive = root.path / "tmp" / "epd.tar.xz"
    subprocess.run([_ROOT / "deploy" / "bundle", "--out", archive], check=True)
    print(f"bundle: {archive.stat().st_size / 1e6:.1f} MB")
    with tarfile.open(archive) as tar:
        tar.extractall(root.path / "opt", filter="data")


def _add_driver(root: Root) -> None:
    folder = root.path / "opt" / "driver"
    folder.mkdir()
    (root.path / "opt" / "told").mkdir()
    for fake in _FAKES:
        shutil.copy(fake, folder)
        shown = subprocess.run(["ldd", fake], check=True, text=True, capture_output=True).stdout
        for library in re.findall(r"=> (/\S+)", shown):
            if not _RUNTIME.match(pathlib.Path(library).name):
                shutil.copy(library, folder)


def _visit(root: Root, *arguments: str) -> tuple[int, dict]:
    """Its status, and the report."""
    driver = {
        "LD_LIBRARY_PATH": "/opt/driver",
        "EPD_FAKE_CUDA": "devices=2",
        "EPD_FAKE_CUDA_FOLDER": "/opt/told",
    }
    environment = [f"{name}={shlex.quote(value)}" for name, value in driver.items()]
    run = ["/opt/epd/tests/gpu/run", "--out", "/tmp/out", "--divide", "64", *arguments]
    ended = root.run(" ".join(["env", *environment, *run]), check=False)
    print(ended.stdout + ended.stderr)
    return ended.returncode, json.loads((root.path / "tmp/out/report.json").read_text())


def _check(parts: list[dict]) -> None:
    wrong = [part for part in parts if part["status"] not in ("passed", "skipped")]
    assert not wrong, wrong
    passed = [part["name"] for part in parts if part["status"] == "passed"]
    assert len(passed) == 17 and all(map(_RUN_HERE.match, passed)), passed
    for part in parts:
        reason = part.get("reason") or part["result"].get("skipped", "")
        assert part["status"] == "passed" or _REASONS.search(reason), part


def main() -> int:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print(f"{sys.argv[0]}: run as root, with debootstrap installed: deploy/setup")
        return 2
    with Root("noble", "python3,ca-certificates", _MIRROR) as root:
        for tool in ("make", "cc", "g++", "nvcc"):
            assert root.run(f"which {tool}", check=False).returncode != 0, tool
        assert root.run("python3 -c 'import jax'", check=False).returncode != 0
        _unpack(root)
        _add_driver(root)
        status, _ = _visit(root, "--budget", "50")
        assert status == 3, status  # It is spent before the parts are.
        shutil.copy(root.path / "tmp/out/report.json", root.path / "tmp/first.json")
        status, report = _visit(root, "--budget", str(_BUDGET), "--resume", "/tmp/first.json")
        assert status == 0, status
        _check(report["parts"])
        told = root.path / "opt/told/violations"
        assert not told.exists(), told.read_text()
        passed = sum(part["status"] == "passed" for part in report["parts"])
        took = sum(part.get("seconds", 0) for part in report["parts"])
        print(f"parts over the fake driver: {passed} in {took:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
