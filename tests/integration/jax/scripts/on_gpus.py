"""A process of a job whose JAX runs on CUDA, which needs no GPU where tests/fakes/jax says so. Prints one JSON object.

Arguments: how its ranks join, the group's number of ranks, and the ranks held here. How: "default" (one rank, where programs run),
"default_device" (the last device, made JAX's default), "mesh" (several ranks along a mesh that is active while they join, the devices backwards),
"devices" (the same, said), "along" (all ranks in one process, a Group along a mesh), "exported" (as "default", by a program
that was exported before, compiled before the group is joined). A layer forward and backward against plain NumPy.
"""

import contextlib
import json
import sys
from unittest import mock

import epd.jax as ep
import jax
import jax.numpy as jnp
import numpy as np
import reference
from epd.jax import _ffi
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_TOKENS, _CAPACITY, _HIDDEN, _EXPERTS = 6, 96, 16, 3
_CFG = ep.EpLayerConfig(top_k=3, dispatch_output_per_expert_alignment=2)
_BACKWARDS = ("mesh", "devices", "along")


def _data(ranks: int):
    """Small integers, whose sums are the same in any order."""
    rng = np.random.default_rng(7)
    idx = rng.integers(-1, _EXPERTS * ranks, (ranks, _TOKENS, 3)).astype(np.int32)
    tokens = rng.integers(-8, 9, (ranks, _TOKENS, _HIDDEN)).astype(np.float32)
    return tokens, idx, rng.integers(1, 5, idx.shape).astype(np.float32)


def _make(how: str, ranks: int, held: list[int], mesh: Mesh) -> ep.Group:
    sizes = {
        "num_experts": _EXPERTS * ranks,
        "max_tokens_per_rank": _TOKENS,
        "recv_capacity_per_rank": _CAPACITY,
        "hidden_dim": _HIDDEN,
        "max_token_dtype": jnp.float32,
        "job": "on-gpus",
    }
    resource = ep.MeshResource(ep_resource="ep")
    if how == "along":
        return ep.Group("g", mesh=mesh, resource=resource, **sizes)
    if how == "mesh":
        with jax.set_mesh(mesh):
            return ep.Group.join("g", ranks, held, resource=resource, **sizes)
    if how == "devices":
        devices = list(mesh.devices.flat)
        return ep.Group.join("g", ranks, held, devices=devices, resource=resource, **sizes)
    return ep.Group.join("g", ranks, held, connect=how != "exported", **sizes)


def _graded(group: ep.Group):
    def loss(tokens, idx, weights):
        recv, recv_weights, handle, counts, total = group.dispatch(
            _CFG, idx, tokens, weights, _CAPACITY
        )
        rows = recv * recv_weights[..., None]
        out = group.combine(_CFG, handle, rows, tokens.shape[0])
        return (out**2).sum(), (recv, counts, total, out)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def _exported(graded, here: list):
    """As another machine exports it, which has no GPU and no group."""
    disabled = [jax.export.DisabledSafetyCheck.custom_call(name) for name in ep.FFI_TARGET_NAMES]
    with mock.patch.object(_ffi, "jax_has_cuda", return_value=False):
        exported = jax.export.export(graded, platforms=["cuda"], disabled_checks=disabled)(*here)
    assert not _ffi.cuda_enabled()
    return jax.jit(exported.call).lower(*here).compile()


def _expect(ranks: int, held: list[int], results, gradient) -> None:
    tokens, idx, weights = _data(ranks)
    plan = reference.plan(idx, _EXPERTS * ranks, 2)
    recv = reference.scatter(plan, tokens, _CAPACITY)
    recv_weights = reference.scatter_weights(plan, weights, _CAPACITY)
    out = reference.gather(plan, recv * recv_weights[..., None])
    back = reference.scatter(plan, 2 * out, _CAPACITY) * recv_weights[..., None]
    wanted = (recv, plan.token_counts, plan.total, out, reference.gather(plan, back))
    names = ("rows", "token counts", "total", "sums", "gradient")
    for name, got, want in zip(names, (*results, gradient), wanted, strict=True):
        want = want[held]
        np.testing.assert_array_equal(np.asarray(got).reshape(want.shape), want, name)


def main() -> int:
    how, ranks, held = sys.argv[1], int(sys.argv[2]), [int(rank) for rank in sys.argv[3:]]
    devices = jax.devices()[: len(held)]
    mesh = Mesh(np.array(devices[::-1] if how in _BACKWARDS else devices), ("ep",))
    if how == "default_device":
        jax.config.update("jax_default_device", jax.devices()[-1])
    place = NamedSharding(mesh, PartitionSpec("ep")) if how in _BACKWARDS else None
    here = [
        jax.device_put(array[held].reshape(-1, array.shape[-1]), place) for array in _data(ranks)
    ]
    with _make(how, ranks, held, mesh) as group, contextlib.ExitStack() as stack:
        if how in _BACKWARDS:
            stack.enter_context(jax.set_mesh(mesh))
            stack.enter_context(ep.global_shard_guard(ep.MeshResource(ep_resource="ep")))
        run = _graded(group)
        if how == "exported":
            run = _exported(run, here)
            group.connect()
        for _ in range(3):
            (_, results), gradient = run(*here)
            jax.block_until_ready(gradient)
            ep.check()
            _expect(ranks, held, results, gradient)
        said = {
            "platform": jax.devices()[0].platform,
            "calls": _ffi.cuda_calls(),
            "devices": [rank.device for rank in group.joining.held],
        }
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
