"""Goal: epctl calls a daemon whose links are TLS as the owner of a certificate, and shows when the daemon's own ends."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import running_epd
from epd import cluster as epd_cluster

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "daemon"))

import certificates  # noqa: E402

_OK, _FAILED, _USAGE, _NO_DAEMON, _DENIED = 0, 1, 2, 3, 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> certificates.Authority:
    made = certificates.Authority(tmp_path_factory.mktemp("ca"))
    for name in ("node", "alice", "bob"):
        made.sign(name)
    return made


@pytest.fixture(scope="module")
def epd(cluster):
    flags = [*cluster.flags("node")[:3], "--nodes=node", "--operators=alice"]
    with running_epd.RunningEpd("--node=n", "--listen=127.0.0.1:0", *flags) as running:
        yield running


def _epctl(
    epd: running_epd.RunningEpd, files: list[str], *words: str, **variables: str
) -> subprocess.CompletedProcess:
    line = next(line for line in epd.log().splitlines() if 'event="serving"' in line)
    address = line.split(" listen=")[1].split()[0]
    return subprocess.run(
        [running_epd.program("epctl"), f"--address={address}", "--timeout=10s", *files, *words],
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _files(cluster: certificates.Authority, name: str) -> dict[str, str]:
    found = {"ca": cluster.ca}
    found |= {
        kind: cluster.folder / f"{name}.{end}" for kind, end in (("cert", "pem"), ("key", "key"))
    }
    return {kind: str(file) for kind, file in found.items()}


def _flags(cluster: certificates.Authority, name: str) -> list[str]:
    return [f"--tls-{kind}={file}" for kind, file in _files(cluster, name).items()]


def test_a_certificate_of_the_cluster_looks_and_an_operators_operates(epd, cluster):
    shown = _epctl(epd, _flags(cluster, "bob"), "status")
    assert shown.returncode == _OK and "certificate:  ends in " in shown.stdout, shown
    denied = _epctl(epd, _flags(cluster, "bob"), "close", "g")
    assert denied.returncode == _DENIED and "`operators`" in denied.stderr, denied
    unknown = _epctl(epd, _flags(cluster, "alice"), "close", "g")
    assert unknown.returncode == _USAGE and "no group 'g'" in unknown.stderr, unknown


def test_the_files_may_come_from_the_environment(epd, cluster):
    files = {f"EPD_TLS_{kind.upper()}": file for kind, file in _files(cluster, "bob").items()}
    nodes = _epctl(epd, [], "-o", "json", "status", "--all-nodes", **files)
    (node,) = json.loads(nodes.stdout)["nodes"]
    assert node["status"]["certificate"]["left"].endswith("s")
    table = _epctl(epd, [], "status", "--all-nodes", **files).stdout.splitlines()
    assert "CERTIFICATE" in table[0] and table[1].split()[5].endswith(("h", "m")), table


def test_without_or_with_a_foreign_certificate_there_is_no_answer(epd, cluster, tmp_path):
    assert _epctl(epd, [], "status").returncode != _OK
    foreign = certificates.Authority(tmp_path / "other", "other")
    foreign.sign("alice")
    files = [f"--tls-ca={cluster.ca}", *_flags(foreign, "alice")[1:]]
    assert _epctl(epd, files, "status").returncode == _NO_DAEMON
    assert _epctl(epd, _flags(foreign, "alice"), "status").returncode == _NO_DAEMON


def test_half_of_the_files_and_an_open_key_are_named(epd, cluster):
    half = _epctl(epd, [f"--tls-ca={cluster.ca}"], "status")
    assert half.returncode == _USAGE and "--tls-ca requires --tls-" in half.stderr, half
    key = cluster.folder / "bob.key"
    key.chmod(0o644)
    opened = _epctl(epd, _flags(cluster, "bob"), "status")
    key.chmod(0o600)
    assert opened.returncode == _USAGE and "mode 0644, expected" in opened.stderr, opened


def test_a_key_with_a_pass_phrase_is_named_with_the_remedy(epd, cluster):
    cluster.sign("carol")
    cluster.encrypt("carol")
    key = cluster.folder / "carol.key"
    said = _epctl(epd, _flags(cluster, "carol"), "status")
    assert said.returncode == _USAGE and f"--tls-key: '{key}' is encrypted" in said.stderr, said
    assert "openssl pkey -in" in said.stderr
    files = tuple(_files(cluster, "carol").values())
    with pytest.raises(ValueError, match="is encrypted and takes a pass phrase"):
        epd_cluster.Node("127.0.0.1:1", tls=files)
    cluster.encrypt("bob", traditional=True)
    with pytest.raises(ValueError, match="is encrypted and takes a pass phrase"):
        epd_cluster.Node("127.0.0.1:1", tls=tuple(_files(cluster, "bob").values()))
    cluster.sign("bob")
    epd_cluster.Node("127.0.0.1:1", tls=tuple(_files(cluster, "bob").values())).close()
