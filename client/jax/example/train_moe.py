"""Trains a small mixture-of-experts transformer on several JAX processes through one epd.

    python train_moe.py                         four processes, dp x ep = 2 x 2
    python train_moe.py --mesh 1x2 --steps 50   two processes

It starts its processes itself. The daemon is found as always (EPD_SOCKET, /run/epd, else a private one is started). Exit
status 0: trained to at most half of the initial loss.
"""

import argparse
import pathlib
import sys

import launch


def arguments(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mesh", default="2x2", help="dp x ep; a process per device (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps (default: %(default)s)"
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
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
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


def train(job, args: argparse.Namespace) -> bool:
    passed = job.train(args.steps)
    if args.rank == 0:
        job.plot(args.plot)
    return passed


def run_rank(args: argparse.Namespace, body) -> int:
    """``body(job, args)``: what to do in the group; whether all is well."""
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
        passed = body(job, args)
        ep.ep_finalize()
    return 0 if passed else 1


def main(script: str, parser: argparse.ArgumentParser, body=train) -> int:
    args = parsed(parser)
    if args.rank is not None:
        return launch.guarded(lambda: run_rank(args, body))
    args.plot.parent.mkdir(parents=True, exist_ok=True)
    return launch.verdict(script, launch.run(script, sys.argv[1:], args.dp * args.ep, args.timeout))


if __name__ == "__main__":
    sys.exit(main(__file__, arguments(__doc__)))
