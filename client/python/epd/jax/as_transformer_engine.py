"""Code that imports Transformer Engine's expert-parallel API of JAX, where that package is not installed."""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import Any

from epd.jax import bootstrap, config, functional, mesh
from epd.jax._transformer_engine import dense, moe, quantize, receive_capacity, recipe

_NAME = "transformer_engine"
# What each module offers; nothing of the others.
_MODULES: Mapping[str, Mapping[str, Any]] = {
    _NAME: {},
    f"{_NAME}.common": {},
    f"{_NAME}.common.recipe": {
        "Recipe": recipe.Recipe,
        "DelayedScaling": recipe.DelayedScaling,
        "Float8CurrentScaling": recipe.Float8CurrentScaling,
        "MXFP8BlockScaling": recipe.MXFP8BlockScaling,
        "NVFP4BlockScaling": recipe.NVFP4BlockScaling,
    },
    f"{_NAME}.jax": {"MeshResource": mesh.MeshResource},
    f"{_NAME}.jax.cpp_extensions": {"noop_collective_op_set": dense.noop_collective_op_set},
    f"{_NAME}.jax.dense": {"dense": dense.dense},
    f"{_NAME}.jax.ep": {
        "EpLayerConfig": config.EpLayerConfig,
        "ep_bootstrap": bootstrap.ep_bootstrap,
        "ep_finalize": bootstrap.ep_finalize,
        "ep_handle_mem_size": functional.ep_handle_mem_size,
        "ep_prepare": functional.ep_prepare,
        "ep_dispatch": functional.ep_dispatch,
        "ep_combine": functional.ep_combine,
    },
    f"{_NAME}.jax.flax": {},
    f"{_NAME}.jax.flax.module": {},
    f"{_NAME}.jax.moe": {
        "moe": moe.moe,
        "get_moe_recv_capacity_per_rank": receive_capacity.get_moe_recv_capacity_per_rank,
        "record_ep_bootstrap_signature_for_moe": receive_capacity.record_ep_bootstrap_signature_for_moe,
    },
    f"{_NAME}.jax.sharding": {
        "MeshResource": mesh.MeshResource,
        "global_shard_guard": mesh.global_shard_guard,
    },
    f"{_NAME}.jax.quantize": {
        "QuantizerFactory": quantize.QuantizerFactory,
        "QuantizerSet": quantize.QuantizerSet,
        "ScalingMode": quantize.ScalingMode,
        "noop_quantizer_set": quantize.noop_quantizer_set,
    },
}
# What needs a package that not everybody has, by the module of epd's that is imported when somebody asks for it.
_ON_DEMAND: Mapping[tuple[str, str], str] = {
    (f"{_NAME}.jax.flax.module", "TransformerEngineBase"): "epd.jax._transformer_engine.flax_module"
}


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name, f"What epd offers of {name}.")
    vars(module).update(_MODULES[name], __path__=[], __all__=list(_MODULES[name]))

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if (source := _ON_DEMAND.get((name, attribute))) is not None:
            return getattr(importlib.import_module(source), attribute)
        raise ImportError(
            f"epd offers nothing called {attribute} in {name}: it moves tokens and quantises none; install {_NAME}, or do"
            f" without (offered there: {', '.join(_MODULES[name]) or 'nothing'})"
        )

    vars(module)["__getattr__"] = missing
    return module


def as_transformer_engine() -> contextlib.ExitStack:
    """Offers ``transformer_engine.jax.ep``, ``.sharding`` and ``.moe`` to what is imported from now on: functions and classes of
    epd's. Of the modules around them there is as much as code needs that asks for no quantisation: ``.quantize``, ``.dense``,
    ``.cpp_extensions``, ``.flax.module`` and ``transformer_engine.common.recipe``; the rest is refused by name.

    ``with as_transformer_engine():`` takes them away at its end.

    Raises:
        ImportError: the real package is installed; use it, or call epd by its own name.
    """
    offered = contextlib.ExitStack()
    if (
        _NAME in sys.modules
        and getattr(sys.modules[_NAME], "__doc__", "") == _module(_NAME).__doc__
    ):
        return offered
    if importlib.util.find_spec(_NAME) is not None:
        raise ImportError(
            f"{_NAME} is installed here, so epd does not stand in for it; import epd.jax in its place, or uninstall it"
        )
    modules = {name: _module(name) for name in _MODULES}
    for name, module in modules.items():
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(modules[parent], own, module)
        offered.callback(sys.modules.pop, name, None)
    return offered
