"""Goal: the epd of each node of a Slurm job listens where the others reach it, whatever its own name means to itself."""

import pathlib
import subprocess

import pytest

_SCRIPT = pathlib.Path(__file__).with_name("slurm") / "epd.sbatch"

# srun runs the last words; one node is enough to see what it would be told.
_FAKES = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "hostname": "echo 127.0.1.1",
    "scontrol": """if [[ "$2" == hostnames ]]; then printf '%s\\n' $FAKE_NODES; else
  [[ -n "$FAKE_ADDR" ]] && echo "NodeName=$4 Arch=x86_64 NodeAddr=$FAKE_ADDR Boards=1"; exit 0; fi""",
    "getent": 'echo "$FAKE_PEER STREAM $2"; echo "$FAKE_PEER DGRAM"; echo "asked $2" >>"$FAKE_LOG"',
    "ip": 'echo "$4 via 10.0.0.254 dev eth0 src $FAKE_SOURCE uid 0 \\\\    cache"; echo "route $4" >>"$FAKE_LOG"',
    "epd": 'printf "%s\\n" "$@" >"$FAKE_LOG.epd"; exec python3 -c "import os, socket; '
    "socket.socket(socket.AF_UNIX).bind(os.environ['EPD_SOCKET'])\"",
}


def _run(folder: pathlib.Path, node: str, **facts: str) -> tuple[subprocess.CompletedProcess, str]:
    """Runs the script on ``node`` with fakes of all that it calls; returns what it did and what epd was told."""
    for name, text in _FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    log = folder / "log"
    log.touch()
    ended = subprocess.run(
        ["bash", _SCRIPT, "echo", "trained"],
        env={
            "PATH": f"{folder}:/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURMD_NODENAME": node,
            "EPD_FOLDER": str(folder / "run"),
            "FAKE_LOG": str(log),
            "FAKE_NODES": "n1 n2",
            "FAKE_ADDR": "",
            **facts,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = folder / "log.epd"
    return ended, log.read_text() + (told.read_text() if told.exists() else "")


@pytest.mark.parametrize(("node", "other"), [("n1", "n2"), ("n2", "n1")])
def test_a_node_listens_at_the_address_from_which_it_reaches_another(tmp_path, node, other):
    ended, said = _run(tmp_path, node, FAKE_PEER="10.0.0.9", FAKE_SOURCE="10.0.0.1")
    assert ended.stdout == "trained\n", ended.stderr
    assert f"asked {other}\n" in said and "route 10.0.0.9\n" in said
    assert "--listen=10.0.0.1:7400" in said.splitlines()
    assert {f"--node={node}", f"--advertise={node}:7400", "--peers=slurm:7400"} <= set(
        said.splitlines()
    )


def test_nodes_without_certificates_share_a_secret_that_nobody_else_reads(tmp_path):
    _, said = _run(tmp_path, "n1", FAKE_PEER="10.0.0.9", FAKE_SOURCE="10.0.0.1")
    secret = tmp_path / "run" / "cluster-secret"
    assert {"--insecure=yes", f"--cluster_secret={secret}"} <= set(said.splitlines())
    assert secret.stat().st_mode & 0o777 == 0o600 and len(secret.read_text()) == 64


def test_with_certificates_the_jobs_nodes_are_the_nodes(tmp_path):
    facts = {"FAKE_PEER": "10.0.0.9", "FAKE_SOURCE": "10.0.0.1", "EPD_TLS_FOLDER": "/tls"}
    _, said = _run(tmp_path, "n1", **facts)
    assert {"--tls_cert=/tls/n1.pem", "--nodes=n1,n1.*,n2,n2.*"} <= set(said.splitlines())
    assert "--insecure" not in said and not (tmp_path / "run" / "cluster-secret").exists()


def test_slurms_own_address_of_a_node_is_the_way_to_it(tmp_path):
    _, said = _run(
        tmp_path, "n1", FAKE_ADDR="n2-ib", FAKE_PEER="fd00::9", FAKE_SOURCE="fd00::1", EPD_PORT="80"
    )
    assert "asked n2-ib\n" in said and "--listen=[fd00::1]:80" in said.splitlines()


def test_a_node_alone_needs_no_way(tmp_path):
    _, said = _run(tmp_path, "n1", FAKE_NODES="n1")
    assert "--listen=127.0.0.1:7400" in said.splitlines()


def test_a_node_without_a_way_says_so_and_starts_nothing(tmp_path):
    ended, said = _run(tmp_path, "n1", FAKE_PEER="127.0.0.1", FAKE_SOURCE="127.0.0.1")
    assert "n1 has no way to n2 (127.0.0.1); set NodeAddr" in ended.stderr
    assert "--listen" not in said
