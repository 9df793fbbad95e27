"""client/jax/example/attention_and_experts.py: losses and all parameters against a dense layer trained in one process."""

import sys

import attention_and_experts as example
import jax
import numpy as np

_TOLERANCE = 1e-4


def _train_dense(args, router, params, batches):
    """-> the losses, router and params after all steps."""

    def loss(router, params):
        total = 0.0
        for tokens, targets in batches:
            idx, weights = example.route(router, tokens)
            out = tokens
            for k in range(idx.shape[1]):
                out = out + example.feed_forward(params, tokens, idx[:, k]) * weights[:, k, None]
            total += ((out - targets) ** 2).sum() / (len(batches) * len(tokens))
        return total

    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    losses = []
    for _ in range(args.steps):
        value, gradients = step(router, params)
        losses.append(float(value))
        router, params = example.descend((router, params), gradients)
    return losses, router, params


def _error(got, want) -> float:
    """Over this process's part."""
    return max(
        float(np.abs(np.asarray(shard.data) - np.asarray(want)[shard.index]).max())
        for shard in got.addressable_shards
    )


def _check(args, problem, attended, params) -> str | None:
    want_losses, want_router, want_params = _train_dense(args, *problem)
    worst = []
    if attended is not None:
        losses, router = attended
        worst += [_error(router, want_router), float(np.abs(np.array(losses) - want_losses).max())]
    if params is not None:
        worst += [_error(params[key], want_params[key]) for key in params]
    if max(worst) > _TOLERANCE or want_losses[-1] >= want_losses[0]:
        return f"DIFFERENT from the dense layer, by at most {max(worst):.1e}"
    print(f"rank {args.rank}: as the dense layer, by at most {max(worst):.1e}", flush=True)
    return None


if __name__ == "__main__":
    sys.exit(example.main(__file__, _check))
