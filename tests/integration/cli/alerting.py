"""A real Prometheus that scrapes epds of a test, with rules of deploy/."""

import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
import running_epd
import scraped
import wait

RULES = running_epd.ROOT / "deploy" / "prometheus" / "epd.rules.yml"


def needs(name: str) -> str:
    """The program's path, or the test is skipped."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"no {name}")
    return program


def firing(base: str) -> list[dict]:
    """Alerts that fire now."""
    with urllib.request.urlopen(f"{base}/api/v1/alerts", timeout=10) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return [alert for alert in alerts if alert["state"] == "firing"]


def _num_scraped(base: str) -> int:
    """Of the targets, those that have answered."""
    with urllib.request.urlopen(f"{base}/api/v1/targets", timeout=10) as answer:
        targets = json.load(answer)["data"]["activeTargets"]
    return sum(target["health"] == "up" for target in targets)


@contextlib.contextmanager
def prometheus(
    epds: list[running_epd.RunningEpd], folder: pathlib.Path, rules: pathlib.Path
) -> Iterator[str]:
    """One that scrapes these epds each second; its address."""
    program = needs("prometheus")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    targets = [scraped.base(epd).removeprefix("http://") for epd in epds]
    (folder / "prometheus.yml").write_text(
        json.dumps(  # Which is YAML, too.
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [{"job_name": "epd", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    command = [program, f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    log = folder / "prometheus.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        base = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            assert server.poll() is None, log.read_text()
            try:
                return urllib.request.urlopen(f"{base}/-/ready", timeout=5).status == 200
            except OSError:
                return False

        wait.until(ready, "prometheus answers", 60)
        # What is counted before the first scrape has not increased for it.
        wait.until(lambda: _num_scraped(base) == len(epds), "all to be scraped once", 60)
        yield base
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
