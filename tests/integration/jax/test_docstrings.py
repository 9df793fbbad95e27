"""Goal: what a docstring, or a README but that of epd.jax (test_snippets.py), shows as code runs as it stands. Each snippet has a row here
with what it leaves to its reader, or with the test that runs it elsewhere."""

import subprocess
from dataclasses import dataclass

import docstring_snippets
import pytest
from docstring_snippets import Snippet
from harness import ROOT, clean_environment, python, running_daemon

_PACKAGE = ROOT / "client" / "python" / "epd"
_JAX_README = "client/jax/README.md"

_ARRAYS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from epd.jax import *
mesh = Mesh(jax.devices(), ("ep",))
def put(array, mesh=mesh): return jax.device_put(array, NamedSharding(mesh, P("ep")))
def arrays(hidden, k, rows=16, dtype=jnp.bfloat16):
    return put(jnp.zeros((rows, k), jnp.int32)), put(jnp.ones((rows, hidden), dtype)), put(jnp.ones((rows, k)))
"""

_BOOTSTRAPPED = """
resource = global_shard_guard(MeshResource(ep_resource="ep")); resource.__enter__()
in_mesh = jax.set_mesh(mesh); in_mesh.__enter__()
ep_bootstrap(world_size=4, rank=0, num_experts=8, max_tokens_per_rank=16, recv_capacity_per_rank=256, hidden_dim=8,
             max_token_dtype=jnp.float32)
"""

_MOE = """
from epd.jax.layers import MoeConfig, RouterConfig
config = MoeConfig(hidden_dim=8, ffn_dim=16, router=RouterConfig(num_experts=8, top_k=2))
tokens, key = put(jnp.ones((16, 8))), jax.random.key(0)
"""

_ROLES = """
devices, m = jax.devices(), 1
def ffn(params, recv, counts): return recv * params.astype(recv.dtype)
idx, tokens, weights = jnp.zeros((3, 2), jnp.int32), jnp.ones((3, 1024), jnp.bfloat16), jnp.full((3, 2), 0.5)
attended_shape = jax.ShapeDtypeStruct((3, 1024), jnp.bfloat16)
"""


@dataclass(frozen=True)
class _Row:
    """A snippet, by a word that it alone has in its file. What is run before it and behind it; `body`: as the body of a function."""

    place: str
    word: str
    before: str = ""
    behind: str = ""
    body: str = ""
    devices: int = 4
    elsewhere: str = ""


_RUNS = (
    _Row(
        "jax/errors.py",
        "with ep_errors()",
        "import jax\nfrom epd.jax import ep_errors\ndef step(_): return jax.numpy.ones(2)",
    ),
    _Row(
        "jax/__init__.py",
        "ep_bootstrap(world_size",
        _ARRAYS
        + "mesh = Mesh(np.array(jax.devices()).reshape(1, 4), ('dp', 'ep'))\ntopk_idx, tokens, topk_weights = arrays(2048, 2)\n"
        + "def experts(recv): return recv\n",
        "assert out.shape == (16, 2048)",
    ),
    _Row(
        "jax/started_exchange.py",
        "first.beside",
        _ARRAYS
        + _BOOTSTRAPPED
        + "layer, capacity = EpLayerConfig(top_k=2), 256\nidx, tokens, weights = ([a] for a in arrays(8, 2, dtype=jnp.float32))\n"
        + "received, experts = [None, put(jnp.ones((4, 256, 8)))], jnp.tanh\n",
        "assert received.shape == (4, 256, 8)",
    ),
    _Row(
        "jax/layers/__init__.py",
        "task_loss",
        _ARRAYS
        + _BOOTSTRAPPED.split("ep_bootstrap")[0]
        + """
ep_bootstrap(world_size=4, rank=0, num_experts=64, max_tokens_per_rank=512, recv_capacity_per_rank=16384, hidden_dim=2048)
def task_loss(out): return out.astype(jnp.float32).mean()
""",
        body="tokens, params",
        behind="""
from epd.jax.layers import MoeConfig, RouterConfig, init_moe
config = MoeConfig(hidden_dim=2048, ffn_dim=1024, router=RouterConfig(num_experts=64, top_k=8, balance_loss=0.01))
params = jax.eval_shape(lambda: init_moe(config, jax.random.key(0), jnp.bfloat16))
tokens = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16, sharding=NamedSharding(mesh, P("ep")))
assert jax.eval_shape(body, tokens, params).shape == ()
""",
    ),
    _Row(
        "jax/layers/nnx.py",
        "nnx.Rngs(0)",
        _ARRAYS
        + _BOOTSTRAPPED
        + _MOE
        + "from flax import nnx\nfrom epd.jax.layers.nnx import Moe\n",
        "assert out.shape == (16, 8)",
    ),
    _Row(
        "jax/layers/linen.py",
        "layer.apply",
        _ARRAYS + _BOOTSTRAPPED + _MOE + "from epd.jax.layers.linen import Moe\n",
        "assert out.shape == (16, 8)",
    ),
    _Row(
        "jax/roles.py",
        "RoleGroup(",
        _ARRAYS + _ROLES + "served_shape = jax.ShapeDtypeStruct((2, 1024), jnp.bfloat16)\n"
        "params = jax.device_put(jnp.ones(()), NamedSharding(Mesh(devices[m:], ('experts',)), P()))\n",
        "assert attended.shape == (3, 1024)",
        devices=3,
    ),
    _Row(
        "jax/roles.py",
        "jax.vjp",
        "import jax\nfrom epd.jax import EpLayerConfig\nlayer = EpLayerConfig(top_k=2)\n"
        "def one_layer(link, params, idx, row, nothing): return params * row\n",
        "class Link:\n    def nothing(self, layer): return 0, jax.numpy.ones(3), None\nassert len(train(Link(), jax.numpy.ones(3))) == 3",
    ),
    _Row(
        "jax/group.py",
        "as encoder",
        _ARRAYS + "def experts(recv): return recv\n",
        "idx, tokens, weights = arrays(1024, 4)\nwith jax.set_mesh(mesh):\n    encoder.connect()\n    assert step(idx, tokens, weights).shape == (16, 1024)\n    encoder.finalize()",
    ),
    _Row("cluster.py", "default_target", behind='print(node.message("GroupSpec"))'),
    _Row(
        "README.md",
        "your_experts",
        "import jax.numpy as jnp\ndef your_experts(recv, counts): return recv",
        "with jax.set_mesh(mesh), global_shard_guard(MeshResource(ep_resource='ep')):\n    out = layer(jnp.zeros((16, 2), jnp.int32), jnp.ones((16, 2048), jnp.bfloat16), jnp.ones((16, 2)))\nassert out.shape == (16, 2048)",
    ),
    # An error's text, and what is run elsewhere.
    _Row("jax/errors.py", "DEADLINE_EXCEEDED", elsewhere="tests/integration/jax/programs/late.py"),
    _Row("jax/run.py", "epd.jax.run", elsewhere="tests/integration/jax/test_run.py"),
    _Row("jax/profile.py", "epd.jax.profile", elsewhere="tests/integration/jax/test_profile.py"),
    _Row("torch/__init__.py", "plan.zones", elsewhere="tests/integration/pytorch/test_torch.py"),
    _Row(
        "torch/transformers.py",
        "from_pretrained",
        elsewhere="client/torch/example/train_transformers.py",
    ),
    _Row(
        "client/torch/README.md",
        "torch.nn.Linear",
        elsewhere="tests/integration/pytorch/test_torch.py",
    ),
    _Row(
        "client/torch/README.md",
        "torch.bucketize",
        elsewhere="tests/integration/pytorch/test_torch.py",
    ),
    _Row(
        "client/torch/README.md",
        "from_pretrained",
        elsewhere="client/torch/example/train_transformers.py",
    ),
)


def _snippets() -> list[Snippet]:
    readmes = [
        str(path.relative_to(ROOT))
        for top in ("", "client", "daemon", "deploy", "kernels", "proto", "tests")
        for path in (ROOT / top).glob("README.md" if not top else "**/README.md")
    ]
    readmes = [path for path in sorted(readmes) if path != _JAX_README]
    return docstring_snippets.of_docstrings(_PACKAGE) + docstring_snippets.of_readmes(ROOT, readmes)


def _rows_of(snippet: Snippet) -> list[_Row]:
    return [row for row in _RUNS if row.place == snippet.place and row.word in snippet.text]


def test_every_snippet_has_one_row_and_every_row_a_snippet():
    found = [(snippet, _rows_of(snippet)) for snippet in _snippets()]
    assert not [snippet for snippet, rows in found if len(rows) != 1]
    assert len(found) == len(_RUNS)
    assert not [row for row in _RUNS if row.elsewhere and not (ROOT / row.elsewhere).exists()]


def test_a_block_ends_where_its_margin_does():
    text = "Head::\n\n    a = 1\n\n    b = 2\n\nText.\n\n::\n\n    c\n"
    assert docstring_snippets.literal_blocks(text) == ["a = 1\n\nb = 2\n", "c\n"]


def _program(row: _Row, text: str) -> str:
    if not row.body:
        return f"{row.before}\n{text}\n{row.behind}\n"
    indented = "".join(f"    {line}" for line in text.splitlines(keepends=True))
    return f"{row.before}\ndef body({row.body}):\n{indented}    return loss\n{row.behind}\n"


@pytest.mark.parametrize(
    "row", [row for row in _RUNS if not row.elsewhere], ids=lambda row: f"{row.place}-{row.word}"
)
def test_a_snippet_runs_as_it_stands(row: _Row):
    (text,) = [snippet.text for snippet in _snippets() if row in _rows_of(snippet)]
    with running_daemon() as daemon:
        ended = subprocess.run(
            python("-c", _program(row, text)),
            env=clean_environment(
                EPD_SOCKET=daemon.socket,
                XLA_FLAGS=f"--xla_force_host_platform_device_count={row.devices}",
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout


def test_the_snippet_in_c_compiles(tmp_path):
    """Of client/c/README.md, as the body of a function; the example beside it is a whole program."""
    text = (ROOT / "client/c/README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    assert lines[0].strip() == "epd_error error = {sizeof error};"
    source = tmp_path / "snippet.c"
    body = "\n".join(lines)
    source.write_text(f'#include "client/c/epd_client.h"\nvoid snippet(void) {{\n{body}\n}}\n')
    command = ["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", f"-I{ROOT}", source]
    subprocess.run(command, check=True)
