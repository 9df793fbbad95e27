"""Runs tests/scale:scale against a fresh epd for each size and prints one row each; see run."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests" / "integration"))

import cluster_secret  # noqa: E402

_BIN = _ROOT / "bazel-bin"
_START_SECONDS = 20
# A worker that is never ready: the coordinator holds no ranks here.
_NO_WORKER = "/bin/false"


def _listen_address(log: pathlib.Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if 'event="serving"' in line:
                return line.split(" listen=")[1].split()[0]
        time.sleep(0.02)
    raise SystemExit(f"epd does not serve:\n{log.read_text()}")


def _peak_mib(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def _cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _over_grpc(num_ranks: int, ranks_per_node: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="epd-scale-") as folder:
        log = pathlib.Path(folder) / "log"
        command = [_BIN / "daemon/epd", f"--socket={folder}/epd.sock", f"--worker={_NO_WORKER}"]
        command += ["--node=coordinator", "--listen=127.0.0.1:0", "--start_grace=0"]
        command += cluster_secret.flags()
        with log.open("wb") as out:
            epd = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            words = [
                _listen_address(log),
                cluster_secret.SECRET.decode(),
                str(num_ranks // ranks_per_node),
                str(ranks_per_node),
            ]
            done = subprocess.run(
                [_BIN / "tests/scale/scale", *words], check=True, stdout=subprocess.PIPE, text=True
            )
            row = json.loads(done.stdout)
            row["coordinator_peak_mib"] = _peak_mib(epd.pid)
            row["coordinator_cpu_s"] = _cpu_seconds(epd.pid)
            return row
        finally:
            epd.kill()
            epd.wait()


def _simulated(num_ranks: int, ranks_per_node: int) -> dict:
    words = [_BIN / "tests/sim/scale", str(ranks_per_node), str(num_ranks)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="64,256,1024,4096")
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--json", type=pathlib.Path, default=_ROOT / "out" / "scale.json")
    given = parser.parse_args()
    rows = []
    print(
        "| ranks | nodes | formed in | messages/node | MiB sent | coordinator | each node ", end=""
    )
    print("| simulator |\n|---|---|---|---|---|---|---|---|")
    for num_ranks in map(int, given.ranks.split(",")):
        row = _over_grpc(num_ranks, given.ranks_per_node)
        row["simulator"] = _simulated(num_ranks, given.ranks_per_node)
        rows.append(row)
        nodes = row["nodes"]
        messages = (row["reports"] + row["views"]) / nodes
        sent = (row["report_bytes"] + row["view_bytes"]) / 2**20
        print(
            f"| {num_ranks} | {nodes} | {row['form_s']:.2f} s | {messages:.1f} | {sent:.1f} "
            f"| {row['coordinator_peak_mib']} MiB, {row['coordinator_cpu_s']:.1f} s CPU "
            f"| {row['nodes_rss_mib'] / nodes:.2f} MiB "
            f"| {row['simulator']['form_s']:.2f} s, {row['simulator']['peak_mib']} MiB |",
            flush=True,
        )
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
