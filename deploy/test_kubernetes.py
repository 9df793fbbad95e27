"""Goal: what Kubernetes is told of epd means what it says: probes, resources, and a job's pods beside it."""

import os
import pathlib
import re
import subprocess

import running_epd

_FOLDER = pathlib.Path(__file__).with_name("kubernetes")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text()


def _ends(kind: str, epd: running_epd.RunningEpd) -> int:
    """What the probe's command ends with, for this epd and the tested epctl."""
    found = re.search(rf"{kind}Probe:\n\s+exec:\n\s+command: \[(.*)\]", _read("epd.yaml"))
    words = [word.strip().strip('"') for word in found[1].split(", ")]
    words = [word.replace("/usr/bin", str(running_epd.program("epctl").parent)) for word in words]
    environment = dict(os.environ, EPD_SOCKET=epd.socket)
    return subprocess.run(words, env=environment, capture_output=True, timeout=30).returncode


def test_probes_pass_while_epd_serves_and_fail_when_it_does_not():
    with running_epd.RunningEpd() as epd:
        for kind in ("startup", "liveness", "readiness"):
            assert _ends(kind, epd) == 0, kind
        epd.process.kill()
        epd.process.wait()
        for kind in ("startup", "liveness", "readiness"):
            assert _ends(kind, epd) != 0, kind


def test_a_jobs_pods_land_beside_epd_and_find_its_socket():
    epd, job = _read("epd.yaml"), _read("job.yaml")
    (label,) = re.findall(r"template:\n    metadata:\n      labels:\n        (.*)\n", epd)
    affinity = re.search(r"podAffinity:\n(.*?)containers:", job, re.DOTALL)[1]
    assert label in affinity and "topologyKey: kubernetes.io/hostname" in affinity
    (socket,) = re.findall(r"--socket=(.*)", epd)
    assert f"value: {socket}" in job
    folder = str(pathlib.Path(socket).parent)
    for text in (epd, job):
        assert f"mountPath: {folder}\n" in text and f"path: {folder}\n" in text


def test_pods_mount_a_folder_that_outlives_epd_and_no_file():
    """A mount of the socket's file stays with the epd that made it."""
    epd, job = _read("epd.yaml"), _read("job.yaml")
    assert "subPath:" not in epd + job and "type: Socket" not in epd + job
    for text in (epd, job):
        assert re.search(r"name: socket\n\s+hostPath:\n\s+path: /run/epd\n\s+type: Directory", text)


def test_pods_share_the_sockets_folder_and_no_namespace():
    """tests/integration/daemon/test_containers.py runs client and epd so."""
    for text in (_read("epd.yaml"), _read("job.yaml")):
        assert not re.search(r"hostPID:|hostIPC:|shareProcessNamespace:|privileged:", text)


def test_updates_go_node_by_node_and_memory_is_reserved():
    epd = _read("epd.yaml")
    assert re.search(r"updateStrategy:\n\s+type: RollingUpdate", epd)
    requests, limits = re.findall(r"(?:requests|limits): (\{.*\})", epd)
    assert requests == limits


def test_epd_takes_what_it_is_told():
    flags = re.findall(r"^ +- (--\w+=.*)$", _read("epd.yaml"), re.MULTILINE)
    filled = [
        flag.replace("$(POD_NAME)", "epd-1").replace("$(POD_NAMESPACE)", "default")
        for flag in flags
    ]
    ended = subprocess.run(
        [running_epd.program("epd"), *filled, "--print-config"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 0, ended.stderr
    assert "coordinator = epd-0.epd.default.svc:7400 " in ended.stdout
