"""Client of epd, the node daemon for expert parallelism. The JAX API is ``epd.jax``."""

__version__ = "0.1.0"
