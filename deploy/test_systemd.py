"""Goal: the unit and the example configuration fit the epd that they come with."""

import configparser
import pathlib
import re
import subprocess

import running_epd

_FOLDER = pathlib.Path(__file__).with_name("systemd")


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


def test_the_unit_stops_later_than_epd_drains():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(_FOLDER / "epd.service")
    drain = _print_config(_FOLDER / "epd.conf")["drain_deadline"][0]
    assert int(unit["Service"]["TimeoutStopSec"]) > int(drain.removesuffix("s"))
    assert unit["Service"]["Type"] == "notify"
