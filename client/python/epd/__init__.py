"""Client of epd, the node daemon for expert parallelism. Its APIs are ``epd.jax`` and ``epd.torch``."""

__version__ = "0.1.0"
