"""Goal: the page tells who holds a group up, in a real browser, however many ranks there are, and says when it is old.

What the browser made of the page is compared as text; how it looks is for people.
"""

import contextlib
import html
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator

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

    def run(url: str, seconds: int = 3, window: str = "1280,800") -> str:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += [f"--window-size={window}"]
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


@contextlib.contextmanager
def _listening(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def served(epd):
    """Serves epd's own page with figures that the test gives, as often as it says."""
    status, headers, page = scraped.get(f"{scraped.base(epd)}/")
    assert status == 200

    @contextlib.contextmanager
    def serve(figures: dict, times: int = 1000, probe: str = ""):
        left = [times]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page + probe
                if self.path != "/":
                    left[0] -= 1
                    body = json.dumps({"age_seconds": 0.1, "late": False, "figures": figures})
                self.send_response(200 if left[0] >= 0 else 503)
                if self.path == "/":
                    self.send_header("Content-Type", headers["Content-Type"])
                if self.path == "/" and not probe:  # Which the page's policy would refuse.
                    name = "Content-Security-Policy"
                    self.send_header(name, headers[name])
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *unused: object) -> None:
                pass

        with _listening(Handler) as url:
            yield url

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


# What somebody needs who has a phone, no mouse, or no eyes for it; in the page, once it shows something.
_PROBE = """<script>setTimeout(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const named = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim();
  const map = document.querySelector("canvas");
  map.focus();
  const press = (key) => map.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const told = () => map.parentElement.querySelector("[aria-live]").textContent;
  press("ArrowRight");
  const first = told();
  press("ArrowDown");
  const probe = document.createElement("pre");
  probe.id = "probe";
  probe.textContent = JSON.stringify({
    window: innerWidth,
    page: document.documentElement.scrollWidth,
    language: document.documentElement.lang,
    mains: all("main").length,
    unnamed: all("canvas, svg, section, [role=region], a, button").filter((e) => !named(e)).length,
    unreached: all("canvas, .scroll").filter((e) => e.tabIndex < 0).length,
    bare: all("table").filter((e) => !e.caption || !e.querySelector("th[scope=col]")).length,
    speaks: all("[role=status], [role=alert]").length,
    told: [first, told()],
    small: all("p, td, th, a").filter((e) => parseFloat(getComputedStyle(e).fontSize) < 12).length,
  });
  document.body.append(probe);
}, 1500);</script>"""


@pytest.mark.parametrize("num_ranks", [2, 64])
def test_it_is_readable_on_a_phone_by_keyboard_and_by_a_screen_reader(browse, served, num_ranks):
    with served(_group(num_ranks), probe=_PROBE) as url:
        page = browse(url, window="500,900")  # As narrow as this browser's windows become.
    found = json.loads(html.unescape(re.search(r'<pre id="probe">(.*?)</pre>', page)[1]))
    assert found["page"] <= found["window"] <= 500, found  # Only tables scroll sideways.
    assert found["language"] == "en" and found["mains"] == 1 and found["speaks"] == 2
    nothing = ("unnamed", "unreached", "bare", "small")
    assert {name: found[name] for name in nothing} == dict.fromkeys(nothing, 0)
    right, down = found["told"]
    assert right != down and all(
        re.match(r"rank \d+ (for|to) rank \d+", one) for one in (right, down)
    )


def test_when_epd_is_gone_the_page_keeps_what_it_last_saw_and_says_so(browse):
    with running_epd.RunningEpd("--metrics_listen=127.0.0.1:0") as lost:
        base = scraped.base(lost)

        class Passing(http.server.BaseHTTPRequestHandler):
            """Hands everything on, until epd is killed behind the first figures."""

            def do_GET(self) -> None:
                try:
                    status, _, body = scraped.get(base + self.path)
                except OSError:
                    return  # The connection ends, as that to an epd that is gone.
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())
                if self.path == "/figures.json":
                    lost.process.kill()
                    lost.process.wait()

            def log_message(self, *unused: object) -> None:
                pass

        with _listening(Passing) as url:
            page = browse(url, seconds=12)
    assert re.search(r'<p id="stale" role="alert">Stale: what you see is 1', page), page[-3000:]
    assert "<td>cpu</td>" in page, page[-3000:]
