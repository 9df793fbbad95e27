"""A rank that runs epd.torch: ``torch_role.py tokens|experts DTYPE FOLDER``. Its peer runs epd.jax or epd.torch."""

import sys

import roles_problem as p
import torch
from epd.torch import Group

role, dtype, folder = sys.argv[1], getattr(torch, sys.argv[2]), sys.argv[3]
group = Group.join("roles", 2, ["tokens", "experts"].index(role), max_token_dtype=dtype, **p.SIZES)


def attend():
    tokens = torch.from_numpy(p.ROWS).to(dtype).requires_grad_()
    weights = torch.from_numpy(p.WEIGHTS).requires_grad_()
    plan = group.prepare(torch.from_numpy(p.IDX), name="ffn")
    recv, _ = group.dispatch(plan, tokens, weights)
    out = group.combine(plan, recv)
    (out.float() ** 2 * torch.from_numpy(p.COEFFICIENTS)).sum().backward()
    return out, [tokens.grad, weights.grad]


def serve():
    scales = torch.from_numpy(p.SCALES).requires_grad_()
    tokens = torch.zeros(1, p.HIDDEN, dtype=dtype, requires_grad=True)
    weights = torch.zeros(1, p.TOP_K, requires_grad=True)
    plan = group.prepare(torch.full((1, p.TOP_K), -1), name="ffn")
    recv, received_weights = group.dispatch(plan, tokens, weights, p.CAPACITY)
    factors = torch.repeat_interleave(scales, plan.token_counts.long())
    factors = torch.cat([factors, torch.zeros(p.CAPACITY - plan.total_recv)]) * received_weights
    rows = (recv.float() * factors[:, None]).to(dtype)
    (group.combine(plan, rows).float() ** 2).sum().backward()
    return recv, [scales.grad, tokens.grad, weights.grad]


with group:
    for _ in range(p.STEPS):
        out, gradients = attend() if role == "tokens" else serve()
    found = {f"grad{i}": gradient.float() for i, gradient in enumerate(gradients)}
    p.save(folder, role, out=out.detach().float(), **found)
