"""A machine with GPUs for the processes that a test starts: the fake driver of tests/fakes/cuda, and a JAX whose platform is CUDA."""

import os
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_FAKES = _ROOT / "bazel-bin" / "tests" / "fakes"


class FakeGpus:
    """Of one test; ``folder`` is where the driver writes what was done to it."""

    def __init__(self, folder: pathlib.Path, devices: int = 1):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._devices = devices
        for name in ("cuda/libcuda.so.1", "jax/libxla_cuda.so"):
            assert (_FAKES / name).exists(), (
                f"{_FAKES / name} is missing: deploy/setup --with-tests"
            )

    @property
    def driver(self) -> dict[str, str]:
        """Of the environment of epd, and of every process on these GPUs."""
        return {
            "LD_LIBRARY_PATH": str(_FAKES / "cuda"),
            "EPD_FAKE_CUDA": f"devices={self._devices}",
            "EPD_FAKE_CUDA_FOLDER": str(self.folder),
        }

    def jax(self, path: str = "") -> dict[str, str]:
        """Of the environment of a process whose JAX sees all of them; ``path``: its PYTHONPATH."""
        return {
            **self.driver,
            "JAX_PLATFORMS": "cuda",
            "EPD_FAKE_XLA_CUDA": str(_FAKES / "jax" / "libxla_cuda.so"),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self._devices}",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [path, str(_ROOT / "tests" / "fakes" / "jax")])
            ),
        }

    def launched(self) -> str:
        """The kernels that have run, a line for each and process."""
        return self._told("launched")

    def violations(self) -> str:
        """The driver's rules that were broken, a line each."""
        return self._told("violations")

    def _told(self, name: str) -> str:
        file = self.folder / name
        return file.read_text() if file.exists() else ""
