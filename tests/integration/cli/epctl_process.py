"""epctl as a process."""

import json
import os
import pathlib
import subprocess

import jsonschema
import running_epd

_SCHEMAS = running_epd.ROOT / "deploy" / "schema"


class Epctl:
    """Runs epctl against one socket."""

    def __init__(self, socket: str):
        self._socket = socket

    def __call__(self, *args: str, **options: object) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EPD_")}
        command = [str(running_epd.program("epctl")), "--socket", self._socket, *args]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, **options
        )

    def json(self, *args: str) -> dict:
        """The command's JSON, checked against its published schema; the exit code is not looked at."""
        ended = self(*args, "-o", "json")
        assert ended.stdout, ended.stderr
        report = json.loads(ended.stdout)
        schema = json.loads(pathlib.Path(_SCHEMAS / f"{args[0]}.json").read_text())
        jsonschema.validate(report, schema, cls=jsonschema.Draft202012Validator)
        return report
