"""Who may include whom (the rules are in the README): control code stays pure, the client stays thin.

Local includes are checked against a table of folders; system headers and a few calls against what each folder must not
know.
"""

import re

import tree

_INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<quote>[<"])(?P<path>[^>"]+)[>"]')

# Folder -> folders whose headers it may include, besides its own. The longest matching folder decides.
_DAEMON_CORE = {"daemon/core"}
_WIRE = {"proto", "proto/stacks"}
_MAY_INCLUDE: dict[str, set[str]] = {
    "proto": set(),
    "proto/failpoint": set(),
    "proto/machine": set(),
    # Both sides of a page: who writes its stacks, and epctl.
    "proto/stacks": set(),
    "kernels": set(),
    # The CUDA driver's table, and kernels and slots on its streams: a worker and a client's handlers put the same
    # operations into streams, and a client may not include the daemon.
    "kernels/cuda/driver": _WIRE | {"kernels"},
    # Sizes of stages and plans, added up for the kinds of operations that slots name.
    "kernels/region": _WIRE | {"kernels"},
    "daemon/core": set(),
    "daemon/control": _DAEMON_CORE,
    "daemon/packet": _DAEMON_CORE,
    # Values of daemon/core in messages: of clients, of workers, of the cluster.
    "daemon/codec": _DAEMON_CORE | _WIRE,
    "daemon/observe": _DAEMON_CORE,
    "daemon/process": _DAEMON_CORE,
    "daemon/shared_memory": _DAEMON_CORE | {"daemon/process"},
    # What epd runs and reads of a machine, and the worker's mode that it runs; probes stay with their backends.
    # Of the driver's table only the words for what a probe found.
    "daemon/doctor": _DAEMON_CORE
    | _WIRE
    | {"daemon/backend", "daemon/node", "daemon/process", "kernels/cuda/driver"},
    # Of daemon/tls only what an address says about who can read along.
    "daemon/node": _DAEMON_CORE
    | _WIRE
    | {
        "daemon/codec",
        "daemon/control",
        "daemon/observe",
        "daemon/packet",
        "daemon/process",
        "daemon/shared_memory",
        "daemon/tls",
    },
    "daemon/tls": _DAEMON_CORE | {"proto"},
    "daemon/store": _DAEMON_CORE | _WIRE | {"daemon/tls"},
    # A memory plan is answered with the sizes that the planning code itself computes.
    "daemon/rpc": _DAEMON_CORE
    | _WIRE
    | {
        "daemon/codec",
        "daemon/control",
        "daemon/doctor",
        "daemon/node",
        "daemon/observe",
        "daemon/store",
        "daemon/tls",
        "kernels",
        "kernels/region",
    },
    # Figures come in as a message; of the node only its settings and its clock are known.
    "daemon/metrics": _DAEMON_CORE | _WIRE | {"daemon/node", "daemon/tls"},
    # Traces come in as messages, too.
    "daemon/otlp": _DAEMON_CORE | _WIRE | {"daemon/node", "daemon/observe", "daemon/tls"},
    "daemon/backend": _DAEMON_CORE
    | _WIRE
    | {"daemon/shared_memory", "kernels", "kernels/cuda/driver", "kernels/region"},
    "daemon/worker": _DAEMON_CORE
    | _WIRE
    | {
        "daemon/backend",
        "daemon/codec",
        "daemon/doctor",
        "daemon/observe",
        "daemon/packet",
        "daemon/shared_memory",
        "daemon/tls",
        "kernels",
        "kernels/region",
    },
    # epd's main.
    "daemon": _DAEMON_CORE
    | _WIRE
    | {
        "daemon/control",
        "daemon/metrics",
        "daemon/node",
        "daemon/observe",
        "daemon/otlp",
        "daemon/rpc",
        "daemon/shared_memory",
    },
    "client/c": _WIRE | {"kernels", "kernels/region"},
    "client/cli": _WIRE | {"client/c"},
    "client/cuda": _WIRE | {"client/c", "kernels", "kernels/cuda/driver", "kernels/region"},
    "client/program": _WIRE | {"client/c", "client/cuda", "kernels", "kernels/cuda/driver"},
    "client/jax": _WIRE
    | {"client/c", "client/cuda", "client/program", "kernels", "kernels/cuda/driver"},
    "client": _WIRE | {"client/c", "kernels"},
}

# What client, epd, worker and kernels must all know: plain C++, without Abseil or protobuf.
_CONTRACT = {
    f"proto/epd/v1/{name}.h"
    for name in ("backends", "code", "descriptors_ahead", "limits", "standstill", "text")
}
_CONTRACT |= {"proto/failpoint/failpoint.h"}  # Nothing, but in a build of its own.
# What a machine gives to any process: threads, limits.
_CONTRACT |= {"proto/machine/cgroup_limits.h", "proto/machine/thread.h"}

_CUDA = r"cuda.*|cudart.*|driver_types\.h"
_NCCL = r"nccl.*|.*/nccl(_ep)?\.h"
_CUDA_HEADERS = r"cuda\.h|cuda_runtime.*|driver_types\.h"
_PROTOBUF = r"google/protobuf/.*|.*\.pb\.h"
_PROTO = r"google/protobuf/.*|proto/.*|.*\.pb\.h"
_GRPC = r"grpc(pp|\+\+)?/.*"
_ABSL = r"absl/.*"
_THREADS = (
    r"thread|mutex|shared_mutex|condition_variable|future|semaphore|barrier|latch|stop_token|pthread\.h"
    r"|absl/synchronization/.*"
)
_CLOCKS = r"chrono|ctime|time\.h|sys/time\.h|absl/time/clock\.h"
_SYSTEM = r"unistd\.h|fcntl\.h|poll\.h|sys/.*|netinet/.*|arpa/.*|linux/.*|dlfcn\.h"

_MUST_NOT_INCLUDE: dict[str, list[tuple[str, str]]] = {
    "daemon/core": [("CUDA", _CUDA), ("NCCL", _NCCL), ("gRPC", _GRPC), ("threads", _THREADS)],
    "daemon/control": [
        ("protos", _PROTO),
        ("CUDA", _CUDA),
        ("NCCL", _NCCL),
        ("gRPC", _GRPC),
        ("threads", _THREADS),
        ("clocks", _CLOCKS),
        ("the operating system", _SYSTEM),
    ],
    "client/c": [("Abseil", _ABSL), ("gRPC", _GRPC), ("CUDA", _CUDA), ("NCCL", _NCCL)],
    "kernels": [("Abseil", _ABSL), ("gRPC", _GRPC), ("protos", _PROTO), ("NCCL", _NCCL)],
    "kernels/region": [("Abseil", _ABSL), ("gRPC", _GRPC), ("protobuf", _PROTOBUF)],
    # Without the driver's headers too; it knows a slot's words, and no message.
    "kernels/cuda/driver": [
        ("Abseil", _ABSL),
        ("gRPC", _GRPC),
        ("protobuf", _PROTOBUF),
        ("CUDA's headers", _CUDA_HEADERS),
        ("NCCL", _NCCL),
    ],
    "client/cuda": [
        ("Abseil", _ABSL),
        ("gRPC", _GRPC),
        ("CUDA's headers", _CUDA_HEADERS),
        ("NCCL", _NCCL),
    ],
    # segment.h serves worker and client.
    "proto": [("Abseil", _ABSL), ("gRPC", _GRPC)],
}

# Only daemon/backend knows NCCL; everything else meets it through that folder's headers.
_NCCL_HEADER = re.compile(r"(.*/)?nccl(_ep)?\.h")

# A thread that cannot be had is an error, and std::thread throws: proto/machine/thread.h makes all of them.
_THREAD_OWNER = "proto/machine/"
_BARE_THREAD = re.compile(
    r"std::j?thread\b(?!::(id|hardware_concurrency)\b)|std::async\b|\bpthread_create\b|\bthrd_create\b"
)

# XLA is built without exceptions: one that leaves a handler ends the process.
_BARE_HANDLER = re.compile(r"\bXLA_FFI_DEFINE_HANDLER_SYMBOL\b")

_CONTROL_CALLS = re.compile(r"absl::(Now|SleepFor|GetCurrentTimeNanos)\(|_clock::now\(|this_thread")


def _longest(path: str, table: dict) -> str | None:
    folders = [folder for folder in table if path.startswith(folder + "/")]
    return max(folders, key=len) if folders else None


def _include_complaint(path: str, quote: str, included: str) -> str | None:
    if included in _CONTRACT:
        return None
    area = _longest(path, _MAY_INCLUDE)
    target = _longest(included, _MAY_INCLUDE)
    if quote == '"' and area and target and target != area and target not in _MAY_INCLUDE[area]:
        return f"{area} must not include {target} ({included})"
    forbidden = _longest(path, _MUST_NOT_INCLUDE)
    for what, pattern in _MUST_NOT_INCLUDE.get(forbidden or "", []):
        if re.fullmatch(pattern, included):
            return f"{forbidden} must not know {what} (<{included}>)"
    if _NCCL_HEADER.fullmatch(included) and not path.startswith("daemon/backend/"):
        return f"only daemon/backend knows NCCL (<{included}>)"
    return None


def check(files: tree.Tree) -> list[str]:
    complaints = []
    for path, text in files.items():
        if not path.endswith(tree.CPP_SUFFIXES):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            found = _INCLUDE.match(line)
            complaint = None
            if found:
                complaint = _include_complaint(path, found["quote"], found["path"])
            elif path.startswith("daemon/control/") and _CONTROL_CALLS.search(line):
                complaint = "daemon/control reads no clock and knows no thread: time is an argument"
            product = (
                path.startswith(("client/", "daemon/", "kernels/", "proto/"))
                and not path.startswith(_THREAD_OWNER)
                and "/example/" not in path
            )
            code = line.split("//")[0]
            if product and _BARE_THREAD.search(code):
                complaint = "make threads with StartThread (proto/machine/thread.h): std::thread throws where there is none"
            if path.startswith("client/") and _BARE_HANDLER.search(code):
                complaint = "make handlers with EPD_JAX_HANDLER (client/jax/ffi_operations.h), which no exception leaves"
            if complaint:
                complaints.append(f"{path}:{number}: {complaint}")
    return complaints


if __name__ == "__main__":
    tree.run(check)
