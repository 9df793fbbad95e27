"""Client of epd, the node daemon for expert parallelism. Its APIs are ``epd.jax``, ``epd.torch`` and ``epd.cluster``."""

import importlib.metadata


def __getattr__(name: str) -> str:
    if name == "__version__":
        return importlib.metadata.version("epd")
    raise AttributeError(f"module 'epd' has no attribute {name!r}")
