"""Goal: the page tells who holds a group up, in a real browser, however many ranks there are, and says when it is old.

What the browser made of the page is compared as text; how it looks is for people.
"""

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading

import pytest
import running_epd
import scraped
import wait


@pytest.fixture(scope="module")
def epd():
    with running_epd.RunningEpd("--metrics_listen=127.0.0.1:0") as running:
        yield running


@pytest.fixture
def browse(tmp_path):
    """Gives the page's elements as text, some seconds of the browser's time after it was opened."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium")

    def run(url: str, seconds: int = 3) -> str:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={tmp_path}/browser", f"--virtual-time-budget={seconds}000"]
        command += ["--dump-dom", f"{url}/"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def _group(num_ranks: int) -> dict:
    """Figures of a group whose last rank is stopped; names are what a hostile client would choose."""
    last, cells = num_ranks - 1, range(num_ranks * num_ranks)
    ranks = [
        {"rank": rank, "phase": "copy", "node": "n0", "pid": 100 + rank, "phase_age": "42s"}
        for rank in range(num_ranks)
    ]
    ranks[last] |= {"phase": "absent_in_announce", "client_name": "<img src=x onerror=alert(1)>"}
    spec = {"name": "<script>document.title=1</script>", "num_ranks": num_ranks}
    waited = [2.5 if i % num_ranks == last and i // num_ranks != last else 0 for i in cells]
    error = {"code": 10, "message": "the worker was replaced"}
    return {
        "status": {"node": "n7", "health": "HEALTH_DEGRADED", "problems": ["<b>late</b>"]},
        "groups": [
            {
                "group_id": "1",
                "spec": spec,
                "state": "GROUP_STATE_READY",
                "ranks": ranks,
                "expert_routes": ["10", "30"],
                "last_error": error,
            }
        ],
        "ranks": [
            {
                "group": spec["name"],
                "num_ranks": num_ranks,
                "figures": {"waited_seconds": waited, "routes": [str(i) for i in cells]},
            }
        ],
        "last_transitions": [
            {"group": "g", "to": "RE_FORMING", "event": "worker_lost", "age": "9s", "cause": error}
        ],
    }


@pytest.fixture
def served(epd):
    """Serves epd's own page with figures that the test gives, as often as it says."""
    status, headers, page = scraped.get(f"{scraped.base(epd)}/")
    assert status == 200

    @contextlib.contextmanager
    def serve(figures: dict, times: int = 1000):
        left = [times]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page
                if self.path != "/":
                    left[0] -= 1
                    body = json.dumps({"age_seconds": 0.1, "late": False, "figures": figures})
                self.send_response(200 if left[0] >= 0 else 503)
                if self.path == "/":
                    for name in ("Content-Security-Policy", "Content-Type"):
                        self.send_header(name, headers[name])
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *unused: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    return serve


@pytest.mark.parametrize("num_ranks", [1, 16, 256])
def test_the_culprit_stands_on_top_however_many_ranks_there_are(browse, served, num_ranks):
    with served(_group(num_ranks)) as url:
        page = browse(url)
    assert f"waits for rank {num_ranks - 1} (n0, pid {99 + num_ranks}) since 42.0 s." in page
    assert "<title>n7: degraded</title>" in page
    # What clients say is text.
    assert "&lt;script&gt;document.title=1&lt;/script&gt;: ready" in page
    assert "<img" not in page and "<b>late" not in page
    # Codes lead to the runbook's words.
    assert '<a href="#do-ABORTED">ABORTED</a>' in page
    assert '<td id="do-ABORTED" tabindex="-1">ABORTED</td>' in page
    assert "prepare again and repeat the step" in page
    if num_ranks > 1:
        assert f"Who waited for whom, {num_ranks} by {num_ranks}" in page
        assert f"rank 0 for rank {num_ranks - 1}: 2.5 s" in page


def test_a_page_that_gets_no_figures_any_more_says_how_old_they_are(browse, served):
    with served(_group(2), times=1) as url:
        page = browse(url, seconds=12)
    assert '<p id="stale" role="alert">Stale: what you see is 1' in page
    assert "waits for rank 1" in page


def test_with_a_real_epd_the_stopped_rank_is_named(browse, epd, hung):
    os.kill(hung[1].pid, signal.SIGSTOP)
    hung[0].begin("a")
    wait.until(
        lambda: scraped.metric(epd, "epd_rank_awaited_seconds").get(("hung", "", "1"), 0) > 1,
        "rank 1 is awaited",
    )
    page = browse(scraped.base(epd))
    assert f"pid {hung[1].pid}) since" in page
    assert "Group hung waits for rank 1" in page


def test_a_page_that_needs_a_token_asks_for_it(browse, tmp_path):
    token = tmp_path / "token"
    token.write_text("correct horse battery\n")
    token.chmod(0o600)
    flags = ("--metrics_listen=127.0.0.1:0", f"--metrics_token={token}")
    with running_epd.RunningEpd(*flags) as epd:
        page = browse(scraped.base(epd), seconds=9)
    assert '<form id="ask">' in page
    assert "Nothing to show (a token is asked for)." in page
