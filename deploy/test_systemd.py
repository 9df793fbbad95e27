"""Goal: the unit and the example configuration fit the epd that they come with."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import running_epd

sys.path.insert(0, str(running_epd.ROOT / "tests" / "integration" / "daemon"))


import epd_process  # noqa: E402
from epd_process import attach_client  # noqa: E402  (whose protos it makes)

_FOLDER = pathlib.Path(__file__).with_name("systemd")
_FILTER = re.compile(r"^SystemCallFilter=(.*)$", re.MULTILINE)


def _print_config(path: pathlib.Path) -> dict[str, tuple[str, str]]:
    """{setting: (value, origin)} of an epd that reads `path`."""
    ended = subprocess.run(
        [running_epd.program("epd"), f"--config={path}", "--print-config"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 0, ended.stderr
    lines = (re.match(r"(\w+) = (.*?)\s+# (\w+)$", line) for line in ended.stdout.splitlines())
    return {line[1]: (line[2], line[3]) for line in lines if line}


def test_the_example_configuration_is_accepted():
    settings = _print_config(_FOLDER / "epd.conf")
    assert settings["socket"] == ("/run/epd/epd.sock", "file")
    assert settings["drain_deadline"] == ("30s", "file")


def test_what_the_example_comments_out_is_accepted_too(tmp_path):
    text = (_FOLDER / "epd.conf").read_text()
    filled = tmp_path / "epd.conf"
    filled.write_text(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))
    settings = _print_config(filled)
    assert sum(origin == "file" for _, origin in settings.values()) >= 6


def _service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(_FOLDER / "epd.service")
    return unit["Service"]


def test_a_hang_is_noticed_and_a_reload_is_a_hangup():
    service = _service()
    assert int(service["WatchdogSec"]) >= 10
    assert service["ExecReload"].endswith("-HUP $MAINPID")


def test_a_restart_keeps_the_folder_that_containers_have_mounted():
    """What they would be left with otherwise: tests/integration/daemon/test_stale_mounts.py."""
    service = _service()
    assert (service["RuntimeDirectory"], service["RuntimeDirectoryPreserve"]) == ("epd", "yes")
    postrm = (_FOLDER.parent / "debian" / "postrm").read_text()
    assert re.search(r"rm -rf .*/run/epd\b", postrm), "purging leaves nothing"


def _analyze(*words: str) -> str:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    ended = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_unit_exposes_little():
    said = _analyze("security", "--offline=true", "--threshold=40", str(_FOLDER / "epd.service"))
    assert float(re.search(r"exposure level for epd.service: ([\d.]+)", said)[1]) < 4.0, said


def _calls(name: str) -> set[str]:
    """The system calls of a set of systemd's, such as @system-service."""
    lines = _analyze("syscall-filter", name).splitlines()[1:]
    words = {line.strip() for line in lines if not line.strip().startswith("#")}
    sets = {word for word in words if word.startswith("@")}
    return words - sets | {call for one in sets for call in _calls(one)}


def test_epd_and_its_worker_serve_with_what_the_unit_leaves_them(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root has capabilities to lose")
    allowed, denied = _FILTER.findall((_FOLDER / "epd.service").read_text())
    calls = _calls(allowed) - _calls(denied.removeprefix("~"))
    listed = tmp_path / "calls"
    listed.write_text(" ".join(calls))
    confined = (
        sys.executable,
        str(running_epd.ROOT / "tests/integration/confined.py"),
        str(listed),
    )
    daemon = epd_process.Daemon(tmp_path)
    try:
        daemon.start(f"--worker={epd_process.binary('epd-worker')}", wrap=confined)
        daemon.worker_pid()
        status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert re.search(r"CapEff:\t0+\n", status) and re.search(r"Seccomp:\t2\n", status)
        with daemon.client() as client:
            client.attach()
            client.join(attach_client.spec(num_ranks=1), [0])
        assert "killed by" not in daemon.log() and "permitted" not in daemon.log(), daemon.log()
    finally:
        assert daemon.stop() == 0


def test_the_unit_stops_later_than_epd_drains():
    service = _service()
    drain = _print_config(_FOLDER / "epd.conf")["drain_deadline"][0]
    assert int(service["TimeoutStopSec"]) > int(drain.removesuffix("s"))
    assert service["Type"] == "notify"
