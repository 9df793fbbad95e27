"""What a worker hangs in is in the support archive while its exec thread hangs and its epd is dead, and stays there once the worker has
ended, too. Of a build with failpoints: EPD_TEST_BIN.

usage: EPD_TEST_BIN=FOLDER hung_worker.py
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "integration")]

import running_epd  # noqa: E402  (needs the path)
import wait  # noqa: E402

_RULE = "worker.snapshot=delay:60s"
# The exec thread, in the failpoint, in the answer to epd.
_FUNCTIONS = ("epd::failpoint::", "epd::ExecLoop::")


def _stacks(folder: pathlib.Path, name: str, pid: int) -> dict:
    command = [running_epd.program("epctl"), "--socket", str(folder / "none"), "support-archive"]
    subprocess.run([*command, str(folder / name)], capture_output=True, timeout=60, check=False)
    archive = json.loads((folder / name).read_text())
    (stacks,) = [one for one in archive.get("stacks", ()) if one["pid"] == pid]
    return stacks


def _check(stacks: dict) -> None:
    frames = [frame for thread in stacks["threads"] for frame in thread.get("frames", ())]
    text = "\n".join(frame.get("function", "") for frame in frames)
    for function in _FUNCTIONS:
        assert function in text, f"{function} is missing:\n{text}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rules = folder / "rules"
        rules.write_text("")
        os.environ["EPD_FAILPOINTS_FILE"] = str(rules)
        epd = running_epd.RunningEpd()
        worker = epd.worker_pid()
        rules.write_text(_RULE)
        fired = folder / "rules.fired"
        wait.until(lambda: fired.exists() and "worker.snapshot" in fired.read_text(), "it hangs")
        epd.process.kill()
        epd.process.wait()
        hangs = _stacks(folder, "hangs.json", worker)
        assert not hangs.get("ended"), "the worker has ended before it was asked"
        _check(hangs)
        print(f"hung_worker: worker {worker} said what it hangs in, its epd dead")
        wait.until(lambda: not pathlib.Path(f"/proc/{worker}").exists(), "it is ended", 30)
        ended = _stacks(folder, "ended.json", worker)
        assert ended["ended"]
        _check(ended)
        print("hung_worker: and the same once it had ended; 2 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
