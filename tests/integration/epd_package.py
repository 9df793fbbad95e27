"""The package epd for a Python that has not installed it: JAX's environment has it, Debian's Python with torch has not."""

import importlib.util
import pathlib


def alone_in(folder: pathlib.Path) -> pathlib.Path:
    """Makes ``folder`` one for PYTHONPATH that holds epd, and nothing else of this Python's packages."""
    found = importlib.util.find_spec("epd")
    assert found is not None and found.origin is not None, "deploy/setup installs epd"
    folder.mkdir(exist_ok=True)
    if not (folder / "epd").exists():
        (folder / "epd").symlink_to(pathlib.Path(found.origin).parent)
    return folder
