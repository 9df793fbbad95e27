"""Trains a small mixture-of-experts transformer on several JAX processes through one epd.

    python train_moe.py --check                 four processes, dp x ep = 2 x 2, checked against a dense reference
    python train_moe.py --check --corrupt       the same with one row corrupted in transit: the check must fail
    python train_moe.py --mesh 1x2 --steps 50   two processes

It starts its processes itself. The daemon is found as always (EPD_SOCKET, /run/epd, else a private one is started). Exit
status 0: trained to at most half of the initial loss and, with --check, equal to the reference.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import traceback

import launch


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mesh", default="2x2", help="dp x ep; a process per device (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps, 0: only check (default: %(default)s)"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare forward and gradients with a dense reference"
    )
    parser.add_argument(
        "--corrupt",
        action="store_true",
        help="debug hook: flip one received row; the check must fail",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default=pathlib.Path("train_moe.png"),
        help="where the plot goes",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds until the processes are ended"
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        args.dp, args.ep = (int(size) for size in args.mesh.lower().split("x"))
    except ValueError:
        parser.error(f"--mesh {args.mesh}: expected DPxEP, for example 2x2")
    return args


def make_mesh(args: argparse.Namespace):
    import jax
    from jax.sharding import AxisType

    jax.config.update("jax_platforms", "cpu")
    if args.dp * args.ep > 1:
        jax.distributed.initialize(args.coordinator, args.dp * args.ep, args.rank)
    return jax.make_mesh(
        (args.dp, args.ep), ("dp", "ep"), axis_types=(AxisType.Auto, AxisType.Auto)
    )


def run_rank(args: argparse.Namespace) -> int:
    import epd.jax as ep
    import jax
    import training
    from model import Sizes

    sizes, mesh = Sizes(), make_mesh(args)
    ranks = args.dp * args.ep
    if sizes.batch % ranks or sizes.experts % args.ep:
        raise SystemExit(
            f"--mesh {args.mesh}: {sizes.batch} sequences and {sizes.experts} experts do not divide by it"
        )
    with (
        jax.set_mesh(mesh),
        ep.global_shard_guard(ep.MeshResource(dp_resource="dp", ep_resource="ep")),
    ):
        job = training.Job(mesh, sizes, args.seed)
        ep.ep_bootstrap(
            world_size=ranks,
            rank=jax.process_index(),
            num_experts=sizes.experts,
            max_tokens_per_rank=sizes.batch // ranks * sizes.sequence,
            recv_capacity_per_rank=job.slots,
            hidden_dim=sizes.model,
            max_token_dtype="float32",
        )
        passed = not args.check or job.check(args.corrupt)
        if passed and args.steps:
            passed = job.train(args.steps)
        if args.rank == 0 and job.history:
            job.plot(args.plot)
        ep.ep_finalize()
    return 0 if passed else 1


def main() -> int:
    args = parse_args()
    if args.rank is not None:
        try:
            return run_rank(args)
        except Exception:  # noqa: BLE001 - whatever it is, this process must end now.
            # The normal way out would wait minutes for the other processes, which wait for this one.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    began = time.monotonic()
    args.plot.parent.mkdir(parents=True, exist_ok=True)
    statuses = launch.run(__file__, sys.argv[1:], args.dp * args.ep, args.timeout)
    good = all(status == 0 for status in statuses)
    print(
        f"train_moe: {'passed' if good else 'FAILED'} in {time.monotonic() - began:.0f} s", end=""
    )
    print("" if good else f"; exit status by process: {json.dumps(statuses)}")
    if good and args.steps:
        print(f"train_moe: plot: {args.plot.resolve()}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
