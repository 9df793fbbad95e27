"""What ``epd.jax.as_transformer_engine`` offers that ``epd.jax`` has under no name of its own: the layer ``moe``, and as much of
the modules around it as code needs that asks for no quantisation. Written from the public interface."""
