"""Goal: the files that make nodes find each other name settings that epd has, and lead to one coordinator.

There is no Slurm or Kubernetes here: epd reads recorded variables, and the files are read as data."""

import os
import pathlib
import re
import subprocess

import pytest

_HERE = pathlib.Path(__file__).resolve().parent
_EPD = pathlib.Path(os.environ.get("EPD_TEST_BIN", _HERE.parent / ".venv" / "bin")) / "epd"
# As srun of Slurm 22.05 sets them for the tasks of a job on three nodes.
_RECORDED = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NODELIST": "node[08-09,12]",
    "SLURM_NNODES": "3",
}


def _config(environment: dict[str, str], *flags: str) -> dict[str, str]:
    done = subprocess.run(
        [_EPD, *flags, "--print-config"],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = (line.split(" # ")[0].split(" = ", 1) for line in done.stdout.splitlines())
    return {name: value.strip() for name, value in (line for line in lines if len(line) == 2)}


def _flags_in(text: str) -> set[str]:
    return set(re.findall(r"--([a-z_]+)=", text))


@pytest.mark.parametrize("file", ["slurm/epd.sbatch", "kubernetes/epd.yaml"])
def test_files_name_only_settings_that_epd_has(file):
    text = (_HERE / file).read_text()
    epd_part = text[text.index("--socket=") :]
    of_srun = {"nodes", "ntasks"}
    assert _flags_in(epd_part) - of_srun <= set(_config({}))
    assert {"listen", "node"} <= _flags_in(epd_part)


def test_slurm_script_is_valid_bash():
    done = subprocess.run(
        ["bash", "-n", _HERE / "slurm" / "epd.sbatch"], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_nodes_of_a_slurm_job_agree_on_its_first_node():
    says = {
        node: _config(
            _RECORDED,
            "--peers=slurm:7400",
            f"--node={node}",
            f"--advertise={node}:7400",
            "--listen=10.0.0.1:7400",
        )["coordinator"]
        for node in ("node08", "node09", "node12")
    }
    assert says == {"node08": "", "node09": "node08:7400", "node12": "node08:7400"}


def test_peers_outside_of_a_slurm_job_are_an_error():
    done = subprocess.run([_EPD, "--peers=slurm:7400"], check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "SLURM_JOB_NODELIST is not set" in done.stderr
