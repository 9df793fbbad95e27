"""What is trained, and how two runs are compared. Pure: no process, no clock."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A tiny DeepSeek: MLA, one dense layer, one of 8 routed experts and a shared one, sigmoid router with a bias. MaxText's hardware=gpu
# only says that processes find each other by JAX_COORDINATOR_IP and that Transformer Engine is told the mesh's axes.
TINY = {
    "model_name": "deepseek3-tiny",
    "override_model_config": "true",
    "hardware": "gpu",
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "enable_goodput_recording": "false",
    "jax_cache_dir": "",
    "steps": "3",
    "base_num_decoder_layers": "3",
    "first_num_dense_layers": "1",
    "num_experts": "8",
    "num_experts_per_tok": "2",
    "vocab_size": "256",
    "max_target_length": "32",
    "megablox": "false",
    "weight_dtype": "float32",
}
_ROUTES = {
    "dense": {"sparse_matmul": "false"},
    "ragged": {"sparse_matmul": "true"},
    "te": {
        "sparse_matmul": "true",
        "te_moe_block": "true",
        "te_gmm_quantization": "te_no_quant",
        "quantization": "te_no_quant",
        "prefuse_moe_weights": "true",
    },
    # Its own run beside "te": the same initial weights, all experts on each device.
    "te-dense": {
        "sparse_matmul": "true",
        "quantization": "te_no_quant",
        "prefuse_moe_weights": "true",
    },
    # MaxText's own, over gloo: all tokens of the axis on each device.
    "ring": {"sparse_matmul": "true", "use_ring_of_experts": "true"},
}
FLAGS = {
    "ragged": "--ragged-all-to-all",
    "te": "--as-transformer-engine",
    "te-dense": "--as-transformer-engine",
}
REFERENCE = {"ragged": "dense", "te": "te-dense", "ring": "dense", "dense": "dense"}
_LAYERS = {
    "scan, full remat": {"scan_layers": "true", "remat_policy": "full"},
    "unrolled, no remat": {"scan_layers": "false", "remat_policy": "minimal"},
}
_MESHES = {
    "ep 4": {"ici_expert_parallelism": "4"},
    "fsdp 2 x ep 2": {"ici_fsdp_parallelism": "2", "ici_expert_parallelism": "2"},
    "tp 2 x ep 2": {"ici_tensor_parallelism": "2", "ici_expert_parallelism": "2"},
    "context 2 x ep 2": {
        "custom_mesh_and_rule": "cp-as-ep",
        "ici_context_parallelism": "2",
        "ici_expert_parallelism": "2",
        "packing": "false",
        # Its reordering for balance asks Transformer Engine's attention on hardware=gpu.
        "context_parallel_load_balance": "false",
    },
    "one device": {},
}
_TIMED = {"steps": "12"}
# Relative, of losses and of gradient norms.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-3}


@dataclass(frozen=True)
class Case:
    """A training: ``route`` of _ROUTES, ``mesh`` of _MESHES, ``layers`` of _LAYERS."""

    route: str
    mesh: str
    layers: str = "scan, full remat"
    dtype: str = "float32"
    words: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        words = [f"{name}_{value}" for name, value in self.words.items()]
        return "-".join((self.route, self.mesh, self.layers, self.dtype, *words)).replace(" ", "_")

    @property
    def reference(self) -> "Case":
        """The run that it is to equal."""
        return Case(REFERENCE[self.route], "one device", self.layers, self.dtype, self.words)

    def arguments(self, folder: str, devices: int) -> list[str]:
        """MaxText's words; the batch of a step has 8 sequences, on however many devices."""
        options = {
            **TINY,
            **_ROUTES[self.route],
            **_LAYERS[self.layers],
            **_MESHES[self.mesh],
            "dtype": self.dtype,
            "run_name": self.name,
            "base_output_directory": folder,
            "per_device_batch_size": str(8 // devices),
            **self.words,
        }
        return [f"{name}={value}" for name, value in options.items()]


@dataclass(frozen=True)
class Step:
    """Of one step: the loss, the norm of its gradients before any clipping, and how long it took."""

    loss: float
    gradient_norm: float
    seconds: float


def steps_of(lines: Sequence[Mapping[str, float]]) -> list[Step]:
    """MaxText's metrics, a mapping for each step."""
    return [
        Step(line["learning/loss"], line["learning/raw_grad_norm"], line["perf/step_time_seconds"])
        for line in lines
    ]


def difference(got: Sequence[Step], want: Sequence[Step]) -> tuple[float, float]:
    """The largest relative difference of losses, and of gradient norms; ValueError for runs of other lengths or with what is no number."""
    if not got or len(got) != len(want):
        raise ValueError(f"got {len(got)} steps, expected the {len(want)} of the reference")
    values = [value for step in (*got, *want) for value in (step.loss, step.gradient_norm)]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"a loss or gradient norm is no finite number: {values}")
    pairs = list(zip(got, want, strict=True))
    return (
        max(abs(a.loss - b.loss) / abs(b.loss) for a, b in pairs),
        max(abs(a.gradient_norm - b.gradient_norm) / abs(b.gradient_norm) for a, b in pairs),
    )


def all_cases() -> list[Case]:
    """Both routes over all meshes that MaxText has for them, each with scan and remat on and off, and in bfloat16.

    MaxText's own checks refuse Transformer Engine's layer over a context axis.
    """
    unrolled = "unrolled, no remat"
    cases = []
    for route in ("ragged", "te"):
        for mesh in ("ep 4", "fsdp 2 x ep 2", "tp 2 x ep 2"):
            cases += [
                Case(route, mesh),
                Case(route, mesh, unrolled),
                Case(route, mesh, dtype="bfloat16"),
            ]
    return [
        *cases,
        Case("ragged", "context 2 x ep 2"),
        Case("ragged", "context 2 x ep 2", unrolled),
    ]


def timed_cases() -> list[Case]:
    """What is timed beside each other, all in four processes: through epd by both routes beside MaxText's experts as one matrix over
    gloo; and beside its ring of experts, which needs the grouped product that is interpreted on CPUs."""
    interpreted = {**_TIMED, "megablox": "true"}
    return [
        *(Case(route, "ep 4", words=_TIMED) for route in ("ragged", "te", "dense")),
        *(Case(route, "ep 4", words=interpreted) for route in ("ragged", "ring")),
    ]
