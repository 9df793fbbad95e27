"""Trains the experts for some steps; prints each. With ``RETRY`` it repeats a step that a loss ended, as survivors do."""

import os

import torch
from epd.torch import EpError
from torch_problem import World, assert_close, dense_gradients, exchanged, loss_of, problem


def main():
    torch.set_num_threads(1)
    world = World.of_arguments()
    want, gradients = dense_gradients(world)
    group = world.join("training")
    retry, step = "RETRY" in os.environ, 0
    while step < int(os.environ["STEPS"]):
        given = problem(world)
        try:
            out = exchanged(group, given)
            loss_of(out).backward()
        except EpError as error:
            print(f"failed {error.code}: {error}", flush=True)
            if not retry or error.retry != "call again":
                raise
            continue
        assert_close(out, want, "out")
        assert_close(given.tokens.grad, gradients[0], "tokens")
        step += 1
        print(f"step {step}", flush=True)
    group.finalize()
    print("training: fine", flush=True)


if __name__ == "__main__":
    main()
