"""Goal: each check of the repository's own complains about the thing it is there for, and only then."""

import backends
import glossary
import layering
import modules
import pytest
import skips
import style
import tally
import tensors
import top_level
import words


def _include(path: str, line: str) -> list[str]:
    return layering.check({path: f"// A file.\n{line}\n"})


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("daemon/control/g.cc", '#include "proto/epd/v1/node.pb.h"', "must not include proto"),
        ("daemon/control/g.cc", '#include "daemon/node/n.h"', "must not include daemon/node"),
        ("daemon/control/g.cc", "#include <google/protobuf/message.h>", "must not know protos"),
        ("daemon/control/g.h", "#include <grpcpp/grpcpp.h>", "must not know gRPC"),
        ("daemon/control/g.h", "#include <cuda_runtime.h>", "must not know CUDA"),
        ("daemon/control/g.h", "#include <nccl.h>", "must not know NCCL"),
        ("daemon/control/g.h", "#include <thread>", "must not know threads"),
        ("daemon/control/g.h", '#include "absl/synchronization/mutex.h"', "must not know threads"),
        ("daemon/control/g.h", "#include <chrono>", "must not know clocks"),
        ("daemon/control/g.h", '#include "absl/time/clock.h"', "must not know clocks"),
        ("daemon/control/g.h", "#include <sys/socket.h>", "must not know the operating system"),
        ("daemon/control/g.cc", "  const absl::Time now = absl::Now();", "reads no clock"),
        ("daemon/control/g.cc", "  auto t = std::chrono::steady_clock::now();", "reads no clock"),
        ("daemon/core/ids.h", '#include "daemon/control/g.h"', "must not include daemon/control"),
        ("daemon/node/n.cc", '#include "daemon/rpc/r.h"', "must not include daemon/rpc"),
        ("daemon/rpc/r.cc", '#include "daemon/backend/cpu.h"', "must not include daemon/backend"),
        ("daemon/main.cc", '#include "daemon/worker/w.h"', "must not include daemon/worker"),
        ("daemon/worker/w.cc", '#include "daemon/node/n.h"', "must not include daemon/node"),
        ("daemon/worker/w.cc", "#include <nccl.h>", "only daemon/backend knows NCCL"),
        ("tests/unit/x_test.cc", '#include "third/nccl.h"', "only daemon/backend knows NCCL"),
        ("client/jax/f.cc", '#include "daemon/core/ids.h"', "must not include daemon/core"),
        ("client/c/c.cc", '#include "daemon/core/ids.h"', "must not include daemon/core"),
        ("client/c/c.cc", '#include "absl/status/status.h"', "must not know Abseil"),
        ("kernels/plan.cc", '#include "absl/types/span.h"', "must not know Abseil"),
        ("kernels/plan.cc", '#include "daemon/core/ids.h"', "must not include daemon/core"),
        ("proto/epd/v1/segment.h", '#include "absl/status/status.h"', "must not know Abseil"),
        ("client/c/s.h", "  std::thread watchdog_;", "make threads with StartThread"),
        ("daemon/worker/w.cc", "  std::jthread reader([] {});", "make threads with StartThread"),
        ("client/jax/f.cc", "  auto done = std::async([] {});", "make threads with StartThread"),
        (
            "client/jax/f.cc",
            "XLA_FFI_DEFINE_HANDLER_SYMBOL(epd_jax_x, X, Bind());",
            "make handlers with EPD_JAX_HANDLER",
        ),
        (
            "daemon/x.cc",
            "  pthread_create(&t, nullptr, Run, this);",
            "make threads with StartThread",
        ),
    ],
)
def test_layering_refuses(path: str, line: str, complaint: str) -> None:
    (found,) = _include(path, line)
    assert found.startswith(f"{path}:2: ")
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("daemon/control/g.cc", '#include "daemon/core/ids.h"'),
        ("daemon/control/g.cc", '#include "absl/time/time.h"'),
        ("daemon/control/g.cc", '#include "proto/epd/v1/limits.h"'),
        ("kernels/k.h", '#include "proto/epd/v1/code.h"'),
        ("daemon/rpc/r.cc", '#include "proto/epd/v1/node.grpc.pb.h"'),
        ("daemon/worker/w.cc", '#include "daemon/backend/nccl_unique_id.h"'),
        ("daemon/backend/nccl_unique_id.cc", "#include <nccl.h>"),
        ("client/jax/f.cc", '#include "client/c/epd_client.h"'),
        ("tests/unit/x_test.cc", "#include <thread>"),
        ("tests/unit/x_test.cc", "  std::thread other([] {});"),
        ("proto/machine/thread.cc", "  std::thread made(body);"),
        ("daemon/worker/w.cc", "  const unsigned n = std::thread::hardware_concurrency();"),
        ("daemon/worker/w.cc", "  std::this_thread::yield();  // Not a std::thread of its own."),
        ("daemon/control/README.md", "#include <thread>"),
    ],
)
def test_layering_allows(path: str, line: str) -> None:
    assert _include(path, line) == []


_GLOSSARY = {"daemon/README.md": "## Glossary\n\n*rank* a place in a group\n"}


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("daemon/worker/w.h", "uint64_t lane_bytes = 0;", "'lane' is retired"),
        ("client/c/c.h", "class LaneMaps;", "'Lane' is retired"),
        ("daemon/worker/w.h", "struct SpanMessage;", "'SpanMessage' is retired"),
        ("daemon/node/n.h", "OrderBook orders;", "is retired; say history"),
    ],
)
def test_glossary_refuses_retired_words(path: str, line: str, complaint: str) -> None:
    [found] = glossary.check({path: line, **_GLOSSARY})
    assert complaint in found


@pytest.mark.parametrize("line", ["ControlPlane p;", "std::span<int> s;", "absl::Span<int> s;"])
def test_glossary_allows_other_words(line: str) -> None:
    assert glossary.check({"daemon/worker/w.h": line, **_GLOSSARY}) == []


@pytest.mark.parametrize("num_words", [0, 26])
def test_glossary_refuses_none_and_too_many(num_words: int) -> None:
    words_of_it = " ".join(f"*w{i}* x" for i in range(num_words))
    [found] = glossary.check({"daemon/README.md": f"## Glossary\n\n{words_of_it}\n"})
    assert "expected 1 to 25" in found


@pytest.mark.parametrize(
    "line",
    [
        "cd /" + "work/main",
        "see /" + "root/.cache",
        "path = '/" + "home/alice/src'",
        "log in /tmp/" + "epd/log",
        "pip install --index" + "-url http://mirror",
        "https://py" + "pi.org/simple",
    ],
)
def test_words_refuses_names_of_one_machine(line: str) -> None:
    (found,) = words.check({"deploy/x": f"fine\n{line}\n"})
    assert found.startswith("deploy/x:2: ")


def test_words_allows_ordinary_paths() -> None:
    text = "/run/epd\n${HOME}/.cache\nbazel-out/work/x\ndaemon/worker/\n/tmp/epd-1000\n"
    assert words.check({"deploy/x": text}) == []


_TOP = {
    name: ""
    for name in (
        *("WORKSPACE", "BUILD", "README.md", ".ci/run"),
        *("proto/a", "daemon/a", "client/a", "kernels/a", "tests/a", "deploy/a", "bazel/a"),
    )
}


def test_top_level_allows_the_map_of_the_readme() -> None:
    assert top_level.check(_TOP) == []


@pytest.mark.parametrize("extra", ["Makefile", "notes/a.md", ".travis.yml"])
def test_top_level_refuses_what_is_not_on_the_map(extra: str) -> None:
    (found,) = top_level.check(_TOP | {extra: ""})
    assert "does not belong" in found


def test_top_level_misses_what_is_on_the_map() -> None:
    (found,) = top_level.check({k: v for k, v in _TOP.items() if k != "README.md"})
    assert found == "README.md: is missing at the top level"


_REGISTRY = {
    "proto/epd/v1/backends.h": '{.name = "cpu"},\n{.name = "cuda",\n .on_device = true},\n'
    '{.name = "nccl_ep",\n .on_device = true},\n'
}
_ENVIRONMENT = "client/python/epd/_environment.py"


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("daemon/control/g.cc", 'if (spec.backend == "cuda") return;', "g.cc:1: the name of"),
        ("client/c/g.h", 'return "nccl_ep" != spec.backend;', "g.h:1: the name of a backend"),
        ("client/jax/a.py", 'if text not in ("cuda", "cpu"):', "a.py:1: the name of a backend"),
        (_ENVIRONMENT, '_GPU_BACKENDS = ("cuda",)', "is not ['cuda', 'nccl_ep']"),
        ("proto/epd/v1/backends.h", "", "no rows of backends"),
    ],
)
def test_backends_refuses(path: str, text: str, complaint: str) -> None:
    (found,) = backends.check(_REGISTRY | {path: text})
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("daemon/backend/cuda/c.cc", 'if (name == "cuda") return;'),
        ("daemon/control/g.cc", 'return "cuda";  // "cuda" is what it says.'),
        ("tests/unit/a_test.cc", 'EXPECT_TRUE(name == "cuda");'),
        (_ENVIRONMENT, '_GPU_BACKENDS = ("cuda", "nccl_ep")'),
    ],
)
def test_backends_allows(path: str, text: str) -> None:
    assert backends.check(_REGISTRY | {path: text}) == []


_HEADER = "// Says what.\n#pragma once\n"


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("daemon/a.h", "#pragma once\n", "first line says"),
        ("daemon/a.h", "// Says what.\n", "no #pragma once"),
        ("daemon/a.h", _HEADER + "using namespace std;\n", "'using namespace' in a header"),
        ("daemon/a.h", _HEADER + "class GroupManager {\n", "'GroupManager' says nothing"),
        ("daemon/a.cc", "struct RankInfo : Base {\n", "'RankInfo' says nothing"),
        ("daemon/a.cc", "\n" * 401, "more than 400"),
        ("client/jax/a.py", "\n" * 401, "more than 400"),
        ("tests/unit/a_test.cc", "\n" * 601, "more than 600"),
    ],
)
def test_style_refuses(path: str, text: str, complaint: str) -> None:
    (found,) = style.check({path: text})
    assert complaint in found


def test_style_allows_a_long_file_that_says_why_and_a_test_of_600_lines() -> None:
    files = {
        "daemon/a.cc": "// Long because the table is one thing.\n" + "\n" * 500,
        "tests/unit/a_test.cc": "\n" * 600,
        "daemon/a.h": _HEADER + "class LeaseTable {\nclass Manager;\n",
    }
    assert style.check(files) == []


_ON_ONE_PATH = {
    "tests/pytest.ini": "[pytest]\npythonpath = .. integration integration/jax\n",
    "tests/integration/jax/nodes.py": "",
    "tests/integration/jax/test_nodes.py": "",
    "tests/integration/cli/test_nodes.py": "",
    "tests/integration/cli/conftest.py": "",
    "tests/integration/jax/conftest.py": "",
    "tests/elsewhere/nodes.py": "",
    "tests/elsewhere/cli.py": "",
}


def test_modules_of_one_name_may_stand_in_folders_that_are_not_on_one_path() -> None:
    assert modules.check(_ON_ONE_PATH) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/integration/nodes.py", ""),
        ("tests/integration/nodes/__init__.py", ""),
        (
            "tests/integration/bench/test_bench.py",
            "import pathlib, sys\n"
            "_TESTS = pathlib.Path(__file__).resolve().parents[2]\n"
            "sys.path.insert(0, str(_TESTS / 'elsewhere'))\n",
        ),
        (
            "tests/integration/bench/test_bench.py",
            "def f():\n"
            "    here = pathlib.Path(__file__).resolve().parent\n"
            "    sys.path[:0] = [str(unknown()), str(here.parent.parent / 'elsewhere')]\n",
        ),
        (
            "tests/integration/bench/test_bench.py",
            "def f(monkeypatch):\n"
            "    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2] / 'elsewhere')\n",
        ),
    ],
)
def test_modules_of_one_name_are_refused_on_one_path(path: str, text: str) -> None:
    (found,) = modules.check(_ON_ONE_PATH | {path: text})
    assert "module nodes is also tests/" in found


def test_a_module_that_hides_one_of_python_is_refused() -> None:
    (found,) = modules.check(_ON_ONE_PATH | {"tests/integration/queue.py": ""})
    assert found == "tests/integration/queue.py:1: hides Python's own module queue"


def test_a_skip_that_is_not_on_the_list_is_refused() -> None:
    cases = [
        tally.Case("//a:a_test A.NeedsGpu", "skipped", "no GPU"),
        tally.Case("//a:a_test A.Flaky", "skipped", "sometimes slow"),
        tally.Case("//a:a_test A.Works", "passed"),
    ]
    (found,) = skips.check(cases, skips.parse("# comment\n\n*NeedsGpu  # no GPU in CI\n"))
    assert "A.Flaky" in found and "sometimes slow" in found


def test_an_allowed_skip_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed_skips.txt:1: no '  # reason'"):
        skips.parse("*NeedsGpu\n")


_TORCH, _JAX = "client/python/epd/torch/a.py", "client/python/epd/jax/layers/a.py"


@pytest.mark.parametrize(
    ("path", "imports", "call", "missing"),
    [
        (_TORCH, "import torch", "torch.empty(shape)", "dtype and device"),
        (_TORCH, "import torch", "torch.zeros(3, dtype=torch.int32)", "device"),
        (_TORCH, "import torch", "torch.arange(3, device=rows.device)", "dtype"),
        (_TORCH, "import torch", "torch.tensor([1])", "dtype and device"),
        (_TORCH, "import torch", "torch.Tensor(2)", "dtype and device"),
        (_TORCH, "import torch as t", "t.empty(shape)", "dtype and device"),
        (_TORCH, "from torch import zeros", "zeros(3)", "dtype and device"),
        (_TORCH, "from torch import zeros as z, ones", "z(3, device=CPU)", "dtype"),
        (_TORCH, "import torch; new = torch.empty", "new(3)", "dtype and device"),
        (_TORCH, "import torch; t = torch; new = t.empty", "new(3)", "dtype and device"),
        (_TORCH, "import torch.nn", "torch.ones(3)", "dtype and device"),
        (_JAX, "import jax.numpy as jnp", "jnp.arange(3)", "dtype"),
        (_JAX, "import jax.numpy as jnp", "jnp.full((2,), 1)", "dtype"),
        (_JAX, "import jax.numpy as jnp", "jnp.array([1])", "dtype"),
        (_JAX, "import jax.numpy as jnp", "jnp.asarray(-1.0)", "dtype"),
        (_JAX, "import jax.numpy as jnp", "jnp.array([i for i in rows])", "dtype"),
        (_JAX, "import jax.numpy as any_name", "any_name.zeros(3)", "dtype"),
        (_JAX, "from jax import numpy as np", "np.zeros(3)", "dtype"),
        (_JAX, "from jax.numpy import zeros", "zeros(3)", "dtype"),
        (_JAX, "import jax", "jax.numpy.zeros(3)", "dtype"),
        (_JAX, "import jax", "jax.random.normal(key, (3,))", "dtype"),
        (_JAX, "from jax import nn", "nn.one_hot(idx, 4)", "dtype"),
    ],
)
def test_tensors_refuses_what_leaves_a_default(
    path: str, imports: str, call: str, missing: str
) -> None:
    (found,) = tensors.check({path: f"{imports}\nx = {call}\n"})
    assert found.startswith(f"{path}:2: {call.split('(')[0]} without {missing}:")


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        (_TORCH, "from torch import *\n", "1: from torch import *"),
        (_TORCH, "import torch\nf(torch.zeros, 3)\n", "2: torch.zeros is handed on"),
        (_TORCH, "import torch\ny = {'a': torch.empty}\n", "2: torch.empty is handed on"),
        (_JAX, "from jax.numpy import ones\nf(ones)\n", "2: ones is handed on"),
    ],
)
def test_tensors_refuses_what_hides_a_call(path: str, text: str, complaint: str) -> None:
    (found,) = tensors.check({path: text})
    assert found.startswith(f"{path}:{complaint}")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (_TORCH, "torch.zeros(3, dtype=torch.int32, device=CPU)"),
        (_TORCH, "rows.new_empty(3)"),
        (_TORCH, "torch.empty_like(rows)"),
        (_TORCH, "isinstance(rows, torch.Tensor)"),
        (_TORCH, "empty(3)"),
        (_JAX, "jnp.zeros((2,), jnp.float32)"),
        (_JAX, "jnp.arange(2, dtype=jnp.int32)"),
        (_JAX, "jnp.asarray(tokens)"),
        (_JAX, "jnp.array([1], jnp.int32)"),
        (_JAX, "np.zeros(3)"),
        ("tests/a.py", "torch.empty(3)"),
    ],
)
def test_tensors_allows_what_says_it_or_has_it_of_another(path: str, line: str) -> None:
    text = f"import numpy as np, torch\nimport jax.numpy as jnp\nx = {line}\n"
    assert tensors.check({path: text}) == []
