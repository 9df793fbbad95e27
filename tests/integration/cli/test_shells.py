"""Goal: real shells complete epctl's words from the script that it prints, man shows its manual, and colours and progress stay off
what is no terminal."""

import os
import pty
import re
import shutil
import struct
import subprocess

import pytest
import running_epd
import scraped

_EPCTL = str(running_epd.program("epctl"))
_PICTURE = str(running_epd.ROOT / "deploy" / "page_picture")


@pytest.fixture
def path(tmp_path):
    """A PATH on which epctl is found, and nothing that this machine's user has set up."""
    (tmp_path / "epctl").symlink_to(_EPCTL)
    return f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"


def _run(path, *command, **options):
    environment = {"PATH": path, "HOME": "/nonexistent", "TERM": "dumb"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, **options
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _bash(path, *words):
    """What bash offers for the last of `words`."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        set -u
        source <(epctl completion bash)
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        _epctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return set(_run(path, "bash", "--norc", "-c", script).split())


def test_bash_completes_commands_options_and_values(path, tmp_path):
    assert {"status", "sessions", "support-archive"} == _bash(path, "epctl", "s")
    assert {"--all-nodes", "--address"} == _bash(path, "epctl", "status", "--a")
    assert {"--deadline"} == _bash(path, "epctl", "drain", "g", "--d")
    assert {"staging"} == _bash(path, "epctl", "top", "--sort", "s")
    assert {"json"} == _bash(path, "epctl", "-o", "j")
    # As bash gives "--sort=s".
    assert {"staging"} == _bash(path, "epctl", "top", "--sort", "=", "s")
    assert {"bash", "fish", "zsh"} == _bash(path, "epctl", "completion", "")
    assert {"EPD-1302"} == _bash(path, "epctl", "explain", "EPD-1302")
    (tmp_path / "a.sock").touch()
    assert {f"{tmp_path}/a.sock"} == _bash(path, "epctl", "--socket", f"{tmp_path}/a.s")


def test_bash_completes_names_of_groups(path, epctl, epd):
    sizes = ["--ranks=2", "--experts=4", "--max-tokens-per-rank=64", "--hidden=16"]
    for name in ("train", "trial"):
        assert epctl("create", name, *sizes, "--recv-capacity-per-rank=256").returncode == 0
    script = f"""
        export EPD_SOCKET={epd.socket}
        source <(epctl completion bash)
        COMP_WORDS=(epctl ranks tr); COMP_CWORD=2
        _epctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert {"train", "trial"} == set(_run(path, "bash", "--norc", "-c", script).split())


def test_zsh_reads_the_script(path):
    if shutil.which("zsh") is None:
        pytest.skip("no zsh")
    script = (
        "autoload -U compinit; compinit -D; source <(epctl completion zsh); print $_comps[epctl]"
    )
    assert _run(path, "zsh", "-f", "-c", script).strip() == "_epctl"


def test_fish_completes(path):
    if shutil.which("fish") is None:
        pytest.skip("no fish")
    script = "epctl completion fish | source; complete -C 'epctl top --sort s'"
    assert "staging" in _run(path, "fish", "--no-config", "-c", script)


def test_man_shows_the_manual_without_a_complaint(path):
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    page = _run(path, "epctl", "man")
    command = ["groff", "-man", "-Tutf8", "-ww"]
    shown = subprocess.run(command, input=page, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and not shown.stderr, shown.stderr
    for word in ("epctl drain", "EXIT STATUS", "NO_COLOR"):
        assert word in _without_marks(shown.stdout)


def _without_marks(text):
    """Without what makes letters bold on a terminal: colours, or each letter twice."""
    return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", text)


def _on_a_terminal(command, **variables):
    """What `command` writes when its streams are a terminal."""
    master, slave = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | variables
    with subprocess.Popen(command, stdout=slave, stderr=slave, stdin=slave, env=environment) as run:
        os.close(slave)
        text = b""
        try:
            while part := os.read(master, 4096):
                text += part
        except OSError:  # The terminal's other end is closed.
            pass
        run.wait(timeout=60)
    os.close(master)
    return text.decode()


def test_colours_are_for_terminals_that_want_them(epd, epctl):
    command = [_EPCTL, "--socket", epd.socket, "status"]
    assert "\x1b[32mok" in _on_a_terminal(command, TERM="xterm")
    assert "\x1b[" not in _on_a_terminal(command, TERM="xterm", NO_COLOR="1")
    assert "\x1b[" not in _on_a_terminal(command, TERM="dumb")
    assert "\x1b[" not in epctl("status").stdout


def test_without_a_command_one_sees_the_status_and_what_to_ask_next(epctl):
    ended = epctl()
    assert ended.returncode == 0 and "health:" in ended.stdout and "Next:" in ended.stdout


def test_a_picture_of_the_page_is_left_or_it_is_said_why_not(tmp_path):
    picture = tmp_path / "page.png"
    without = {"PATH": str(tmp_path)}
    (tmp_path / "bash").symlink_to("/bin/bash")
    nobody = subprocess.run(
        ["/bin/bash", _PICTURE, "http://127.0.0.1:1/", picture],
        capture_output=True,
        text=True,
        timeout=60,
        env=without,
    )
    assert nobody.returncode == 3 and "there is no chromium" in nobody.stderr
    if shutil.which("chromium") is None:
        pytest.skip("no chromium")
    with running_epd.RunningEpd("--metrics_listen=127.0.0.1:0") as epd:
        ended = subprocess.run(
            [_PICTURE, f"{scraped.base(epd)}/", picture],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ended.returncode == 0, ended.stderr
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", head[16:24]) == (1280, 1600)
