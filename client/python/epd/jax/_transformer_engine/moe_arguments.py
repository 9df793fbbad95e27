"""The arguments of ``moe``: what does not fit, by the caller's names, and what they mean on the mesh."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from epd.jax._transformer_engine.quantize import check_none
from epd.jax.mesh import MeshResource, active_resource_or_none


def check_shapes(given: Mapping[str, jax.Array | None], experts: int) -> tuple[int, int]:
    """-> (hidden, inner dimension of an expert); ValueError with all shapes that do not fit, each with got and expected."""
    x, wi = given["x"], given["wi"]
    assert x is not None and wi is not None
    if x.ndim != 3 or wi.ndim != 3 or wi.shape[2] % 2:
        raise ValueError(
            f"moe: x has shape {list(x.shape)} and wi {list(wi.shape)}; expected [batch, sequence, hidden] and"
            " [num_experts, hidden, 2 * ffn], the gate's columns before the others"
        )
    hidden, ffn = x.shape[2], wi.shape[2] // 2
    want = {
        "gate_kernel": (hidden, experts),
        "wi": (experts, hidden, 2 * ffn),
        "wo": (experts, ffn, hidden),
        "wi_0_bias": (experts, ffn),
        "wi_1_bias": (experts, ffn),
        "wo_bias": (experts, hidden),
        "expert_bias": (experts,),
    }
    wrong = [
        f"{name} has shape {list(array.shape)}, expected {list(shape)}"
        for name, shape in want.items()
        if (array := given[name]) is not None and array.shape != shape
    ]
    biases = ("wi_0_bias", "wi_1_bias", "wo_bias")
    missing = [name for name in biases if given[name] is None]
    if 0 < len(missing) < len(biases):
        wrong.append(f"{', '.join(missing)} is None; give all of {', '.join(biases)}, or none")
    wrong += [
        f"{name} has dtype {array.dtype}, expected a floating one"
        for name, array in given.items()
        if array is not None and not jnp.issubdtype(array.dtype, jnp.floating)
    ]
    if wrong:
        raise ValueError("moe: " + "; ".join(wrong))
    return hidden, ffn


def refuse_what_is_not_offered(quantizer_sets: Any, others: Mapping[str, Any]) -> None:
    """NotImplementedError naming an argument that asks for what epd does not have; ``others`` are to be None or False."""
    if not isinstance(quantizer_sets, tuple | list) or len(quantizer_sets) != 2:
        raise ValueError(
            f"moe: quantizer_sets is {quantizer_sets!r}; expected a pair, of FC1 and FC2"
        )
    for index, each in enumerate(quantizer_sets):
        check_none(f"moe(quantizer_sets[{index}]", each)
    asked = [name for name, value in others.items() if value not in (None, False)]
    if asked:
        raise NotImplementedError(
            f"epd does not offer moe's {', '.join(asked)}: leave {'them' if len(asked) > 1 else 'it'} out, or install"
            " transformer_engine"
        )


def resource_of(
    mesh: Mesh | AbstractMesh,
    mesh_resource: MeshResource | None,
    ep_axis: str | Sequence[str] | None,
    data_parallelism_axes: Sequence[str] | None,
) -> MeshResource:
    """The axes that carry tokens: the resource's, and what the other two name beside it.

    Raises:
        TypeError: a ``mesh_resource`` that is none.
        ValueError: none names the axis of the experts, or two name different ones; more than two axes of data.
    """
    if not isinstance(mesh_resource, MeshResource | None):
        raise TypeError(
            f"moe: mesh_resource must be a MeshResource or None, got {type(mesh_resource).__name__}"
        )
    resource = mesh_resource or active_resource_or_none() or MeshResource()
    experts = ep_axis if ep_axis is None or isinstance(ep_axis, str) else tuple(ep_axis)
    if not (experts or resource.ep_resource):
        raise ValueError(
            "moe: no axis of the mesh is named for the experts: give ep_axis, or enter a global_shard_guard whose"
            " MeshResource names ep_resource"
        )
    named = resource.ep_resource
    if experts and named and _axes(experts) != _axes(named):
        raise ValueError(
            f"moe: ep_axis is {ep_axis!r}, but the MeshResource's ep_resource is {named!r}; name the same axis"
        )
    sizes = mesh.shape
    known = [resource.dp_resource, resource.fsdp_resource]
    given = [*known, *(data_parallelism_axes or ())]
    carriers = list(dict.fromkeys(axis for axis in given if axis and sizes.get(axis, 1) > 1))
    if set(carriers) <= set(known):
        outer = known
    elif len(carriers) <= 2:
        outer = [*carriers, None, None][:2]
    else:
        raise ValueError(
            f"moe: tokens are split over {', '.join(carriers)} beside the experts' axis (dp_resource and fsdp_resource of"
            " the MeshResource, data_parallelism_axes); at most two such axes may be larger than 1"
        )
    return MeshResource(dp_resource=outer[0], fsdp_resource=outer[1], ep_resource=experts or named)


def _axes(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def inner_axis(
    mesh: Mesh | AbstractMesh,
    wi_kernel_axes: Sequence[str | None],
    wo_kernel_axes: Sequence[str | None],
    resource: MeshResource,
    ffn: int,
) -> str | None:
    """The mesh axis that splits the experts' inner dimension, by Flax's rules for the logical names; None: each rank has it whole.

    Whole is always right; split is what tensor parallelism wants. It is whole where both kernels do not say the same one axis,
    where that carries tokens or does not divide ``ffn``, and where no rules are active.
    """
    flax_spmd = sys.modules.get("flax.linen.spmd")
    if flax_spmd is None or len(wi_kernel_axes) != 3 or len(wo_kernel_axes) != 3:
        return None
    sizes = mesh.shape
    carriers = {resource.dp_resource, resource.fsdp_resource, *_axes(resource.ep_resource or ())}

    def large(names: Sequence[str | None], place: int) -> tuple[str, ...]:
        spec = flax_spmd.logical_to_mesh_axes(tuple(names)) or (None,) * 3
        axes = spec[place] or ()
        return tuple(axis for axis in _axes(axes) if sizes.get(axis, 1) > 1)

    split, same = large(wi_kernel_axes, 2), large(wo_kernel_axes, 1)
    fits = len(split) == 1 and split == same and not set(split) & carriers
    return split[0] if fits and ffn % sizes[split[0]] == 0 else None
