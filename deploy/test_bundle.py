"""Goal: the bundle is small, runs from wherever it is unpacked, and carries what tests/gpu/run needs."""

import pathlib
import re
import subprocess
import tarfile

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The unpacked bundle, far from the clone that it was made in."""
    folder = tmp_path_factory.mktemp("bundle")
    archive = folder / "epd.tar.gz"
    subprocess.run([_ROOT / "deploy" / "bundle", "--out", archive], check=True)
    assert archive.stat().st_size < 60e6
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "epd"


def _nvcc() -> str:
    """The compiler that deploy/setup found: cuda.h stands beside it."""
    settings = (_ROOT / ".venv" / "bazelrc").read_text()
    return re.search(r"EPD_NVCC=(\S+)", settings)[1]


def _run(*command: str | pathlib.Path) -> subprocess.CompletedProcess:
    clean = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, check=False, text=True, capture_output=True, env=clean)


@pytest.mark.parametrize("program", ["epd", "epd-worker", "epctl"])
def test_programs_start_with_the_bundles_own_libraries(bundle: pathlib.Path, program: str) -> None:
    ended = _run(bundle / "bin" / program, "--help")
    assert "usage" in (ended.stdout + ended.stderr).lower(), ended
    shown = subprocess.run(
        ["ldd", bundle / "libexec" / program],
        check=True,
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(bundle / "lib")},
    )
    outside = [
        line
        for line in shown.stdout.splitlines()
        if "=> /" in line
        and str(bundle) not in line
        and not line.strip().startswith(("libc.", "libm.", "libstdc++.", "libgcc_s.", "libresolv."))
    ]
    assert outside == [], "libraries that another machine may not have"


def test_wheel_and_kernels_are_in_it(bundle: pathlib.Path) -> None:
    assert len(list((bundle / "wheel").glob("epd-*.whl"))) == 1
    image = (bundle / "kernels" / "cuda" / "kernels.fatbin").read_bytes()
    assert image[:4] == bytes.fromhex("50ed55ba")
    assert (bundle / "COMMIT").read_text().strip()


def test_gpu_tests_run_from_it(bundle: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Without a GPU they say so; with make and g++ alone the program that needs none builds and passes."""
    ended = _run(bundle / "tests" / "gpu" / "run")
    assert ended.returncode == 77, ended.stdout + ended.stderr
    make = ["make", "-j2", "-C", str(bundle / "tests" / "gpu"), f"OUT={tmp_path}", "CXXFLAGS=-O0"]
    make.append(f"NVCC={_nvcc()}")
    built = subprocess.run([*make, "host"], check=False, text=True, capture_output=True)
    assert built.returncode == 0, built.stdout + built.stderr
    ended = _run(tmp_path / "kernel_tests", "--host", "--seeds", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
