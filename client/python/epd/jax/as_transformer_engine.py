"""Code that imports Transformer Engine's expert-parallel API of JAX, where that package is not installed."""

import contextlib
import importlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax

from epd.jax import bootstrap, config, functional, mesh, primitives
from epd.jax._transformer_engine import dense, moe, moe_router, quantize, receive_capacity, recipe

_NAME = "transformer_engine"
_EP_OPERATIONS = {
    "EpConfig": config.EpConfig,
    "EpLayerConfig": config.EpLayerConfig,
    "get_ep_config": config.get_ep_config,
    "ep_handle_mem_size": functional.ep_handle_mem_size,
    "ep_prepare": functional.ep_prepare,
    "ep_dispatch_fwd": primitives.ep_dispatch_fwd,
    "ep_combine_fwd": primitives.ep_combine_fwd,
    "ep_dispatch_bwd": primitives.ep_dispatch_bwd,
    "ep_combine_bwd": primitives.ep_combine_bwd,
}


def _jax_version_meet_requirement(version: str) -> bool:
    """Whether this JAX's release is ``version`` or newer; what stands behind its numbers ("0.9.2.dev20260317") does not count."""
    numbers = itertools.takewhile(str.isdigit, version.split("."))
    return jax.__version_info__ >= tuple(map(int, numbers))


def _no() -> bool:
    """What the real package asks its build and JAX for, and epd makes no use of."""
    return False


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
    f"{_NAME}.jax.cpp_extensions": {
        "noop_collective_op_set": dense.noop_collective_op_set,
        **_EP_OPERATIONS,
    },
    f"{_NAME}.jax.cpp_extensions.ep": {
        **_EP_OPERATIONS,
        "is_ep_borrowed_comm_built": _no,
        "use_nccl_comm_from_xla": _no,
    },
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
    f"{_NAME}.jax.flax.moe": {},
    f"{_NAME}.jax.moe": {
        "moe": moe.moe,
        "get_moe_recv_capacity_per_rank": receive_capacity.get_moe_recv_capacity_per_rank,
        "record_ep_bootstrap_signature_for_moe": receive_capacity.record_ep_bootstrap_signature_for_moe,
    },
    f"{_NAME}.jax.router": {"ScoreFunction": moe_router.ScoreFunction},
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
    f"{_NAME}.jax.version_utils": {
        "jax_version_meet_requirement": _jax_version_meet_requirement,
        "is_collective_stream_supported": _no,
        "is_triton_autotuned_alias_safe": _no,
        "is_triton_extension_supported": _no,
        "is_xla_ffi_collectives_supported": _no,
    },
}
# What needs a package that not everybody has, by the module of epd's that is imported when somebody asks for it.
_FLAX = "epd.jax._transformer_engine.flax_module"
_ON_DEMAND: Mapping[tuple[str, str], str] = {
    (f"{_NAME}.jax.flax.module", "TransformerEngineBase"): _FLAX,
    (f"{_NAME}.jax.flax", "_MoEBlock"): _FLAX,
    (f"{_NAME}.jax.flax.moe", "_MoEBlock"): _FLAX,
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
    ``.cpp_extensions`` and its ``.ep``, ``.flax._MoEBlock``, ``.flax.module``, ``.router``, ``.version_utils`` and
    ``transformer_engine.common.recipe``; the rest is refused by name.

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
