"""Goal: the bundle is small, runs from wherever it is unpacked, and carries what tests/gpu/run needs."""

import pathlib
import subprocess
import tarfile

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The unpacked bundle, far from the clone that it was made in."""
    folder = tmp_path_factory.mktemp("bundle")
    archive = folder / "epd.tar.xz"
    subprocess.run([_ROOT / "deploy" / "bundle", "--out", archive], check=True)
    assert archive.stat().st_size <= 20e6
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "epd"


def _run(*command: str | pathlib.Path) -> subprocess.CompletedProcess:
    clean = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, check=False, text=True, capture_output=True, env=clean)


@pytest.mark.parametrize("program", ["epd", "epd-worker", "epctl"])
def test_programs_start_with_the_bundles_own_libraries(bundle: pathlib.Path, program: str) -> None:
    ended = _run(bundle / "bin" / program, "--help")
    assert "usage" in (ended.stdout + ended.stderr).lower(), ended
    shown = subprocess.run(
        ["ldd", bundle / "bin" / program],
        check=True,
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    outside = [
        line
        for line in shown.stdout.splitlines()
        if "=> /" in line
        and str(bundle) not in line
        and not line.strip().startswith(("libc.", "libm.", "libstdc++.", "libgcc_s.", "libresolv."))
    ]
    assert outside == [], "libraries that another machine may not have"


def _run_example(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the bundle's own daemon, which it starts."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    ended = subprocess.run(
        [program, "--ranks=2", "--steps=2"],
        check=False,
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(runtime)},
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_program_outside_of_the_tree_finds_the_library_with_cmake(
    bundle: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source, build = bundle / "share" / "epd" / "example", tmp_path / "build"
    prefix = f"-DCMAKE_PREFIX_PATH={bundle}"
    for command in (["cmake", "-S", source, "-B", build, prefix], ["cmake", "--build", build]):
        ended = _run(*command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    _run_example(build / "exchange_example", tmp_path)
    too_new = tmp_path / "CMakeLists.txt"
    too_new.write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(x CXX)\nfind_package(epd 99 REQUIRED)\n"
    )
    ended = _run("cmake", "-S", tmp_path, "-B", tmp_path / "new", prefix)
    assert ended.returncode != 0 and "99" in ended.stderr


def test_a_program_outside_of_the_tree_finds_the_library_with_pkg_config(
    bundle: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "epd"],
        check=True,
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(bundle / "lib" / "pkgconfig")},
    ).stdout.split()
    source = bundle / "share" / "epd" / "example" / "exchange_example.cc"
    program = tmp_path / "example"
    runtime_path = f"-Wl,-rpath,{bundle / 'lib'}"
    ended = _run("g++", "-std=c++17", "-pthread", source, "-o", program, *flags, runtime_path)
    assert ended.returncode == 0, ended.stderr
    _run_example(program, tmp_path)


def test_wheel_and_kernels_are_in_it(bundle: pathlib.Path) -> None:
    assert len(list((bundle / "wheel").glob("epd-*.whl"))) == 1
    image = (bundle / "gpu" / "kernels.fatbin").read_bytes()
    assert image[:4] == bytes.fromhex("50ed55ba")
    assert (bundle / "COMMIT").read_text().strip()


def test_gpu_tests_run_from_it(bundle: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Without a GPU they say so; no part lacks a program, and the one that needs no GPU passes."""
    ended = _run(bundle / "tests" / "gpu" / "run", "--budget", "540", "--out", tmp_path)
    assert ended.returncode == 77, ended.stdout + ended.stderr
    assert (tmp_path / "report.json").exists()
    ended = _run(bundle / "tests" / "gpu" / "run", "--build-only", "--out", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ended = _run(bundle / "gpu" / "kernel_tests", "--host", "--seeds", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
