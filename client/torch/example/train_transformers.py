"""Trains a tiny mixture-of-experts model of Hugging Face transformers in four processes that share its experts through epd,
and checks every step against the same model on one.

    pip install torch "transformers>=5.23" accelerate
    python3 client/torch/example/train_transformers.py [--model mixtral] [--tp 4]

Each process owns a quarter of each layer's experts. Without --tp each has a batch of its own, and transformers' FSDP splits and
sums the other parameters; with --tp 4 all hold one batch and split those parameters. In the second step all tokens
are one and the same, so each layer uses two experts, and some processes receive nothing.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

RANKS, BATCH, LENGTH, VOCABULARY, STEPS = 4, 4, 16, 128, 5
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "num_experts_per_tok": 2,
}
EXPERTS = 8
TOLERANCE = 1e-5  # Of losses, relative; of gradients, beside the largest of the model.


def dense_model(kind):
    import transformers

    torch.manual_seed(0)
    if kind == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(
            **SIZES, num_experts=EXPERTS, moe_intermediate_size=32, head_dim=8
        )
        return transformers.Qwen3MoeForCausalLM(config)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=EXPERTS)
    return transformers.MixtralForCausalLM(config)


def batch(step):
    """Token numbers of all batches."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    return torch.full_like(tokens, 7) if step == 1 else tokens


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def received_nothing(model):
    """Whether in some layer no expert of this process got a token."""
    own = [p.grad for n, p in model.named_parameters() if n.endswith("experts.down_proj")]
    return any(not grad.to_local().any() for grad in own)


def step_of(model, optimizer, tokens):
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.detach()


def differences(model, dense, of):
    """The largest difference, beside the largest value. ``of``: what of each parameter."""
    pairs = zip(model.parameters(), dense.parameters(), strict=True)
    pairs = [(whole(of(a)), of(b)) for a, b in pairs]
    return max(float((a - b).abs().max()) for a, b in pairs) / max(
        float(b.abs().max()) for _, b in pairs
    )


def train(rank, options, folder):
    import epd.torch.transformers
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    dense = dense_model(options.model)
    if rank == 0:
        dense.save_pretrained(folder)
    dist.barrier()
    # A process sends at most its batch, or its share of it.
    epd.torch.transformers.register(max_tokens_per_rank=BATCH * LENGTH // RANKS)
    layout = {"tp_size": options.tp, "fsdp_size": RANKS // options.tp, "ep_size": RANKS}
    layout = DistributedConfig(**layout, ep_implementation="epd")
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=layout)
    models = (model, dense)
    # Before the first forward, after which FSDP's parameters may lie unsharded.
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    # The batches of this process: its tp neighbours have the same.
    parts = BATCH * options.tp // RANKS
    here = slice(rank // options.tp * parts, (rank // options.tp + 1) * parts)
    with torch.no_grad():
        logits, want = (whole(m.eval()(batch(0)[here]).logits) for m in models)
    forward = float((logits - want).abs().max() / want.abs().max())
    assert forward <= TOLERANCE, forward
    model.train()
    dense.train()
    for step in range(STEPS):
        tokens, losses, seconds = batch(step), [], []
        for m, optimizer, part in zip(models, optimizers, (tokens[here], tokens), strict=True):
            dist.barrier()
            began = time.perf_counter()
            losses.append(step_of(m, optimizer, part))
            seconds.append(time.perf_counter() - began)
        dist.all_reduce(losses[0])
        loss, want = float(losses[0]) / RANKS, float(losses[1])
        unused = torch.tensor(int(received_nothing(model)))
        dist.all_reduce(unused)
        gradients = differences(model, dense, lambda p: p.grad)
        for optimizer in optimizers:
            optimizer.step()
        parameters = differences(model, dense, lambda p: p.detach())
        if rank == 0:
            print(
                f"step {step}: loss {loss:.6f}, dense {want:.6f}; differences of gradients {gradients:.1e}, of parameters"
                f" after SGD {parameters:.1e}; {int(unused)} processes received nothing in a layer; {1e3 * seconds[0]:.0f} ms",
                flush=True,
            )
        assert abs(loss - want) <= TOLERANCE * want, (loss, want)
        assert gradients <= TOLERANCE and parameters <= TOLERANCE, (gradients, parameters)
        assert step != 1 or unused > 0, "every process received tokens"
    epd.torch.transformers.leave()
    if rank == 0:
        print(f"train_transformers: {options.model} equals the dense model", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("qwen3_moe", "mixtral"), default="qwen3_moe")
    parser.add_argument("--tp", type=int, choices=(1, 4), default=1)
    options = parser.parse_args()
    if "RANK" in os.environ:
        return train(int(os.environ["RANK"]), options, os.environ["MODEL_FOLDER"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MODEL_FOLDER": folder}
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env={
                    **os.environ,
                    **meeting,
                    "WORLD_SIZE": str(RANKS),
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                },
            )
            for r in range(RANKS)
        ]
        return max(abs(process.wait()) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
