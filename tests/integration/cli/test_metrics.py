"""Goal: a scraper sees what happens on the node, also while a rank, the worker or epd itself does not move, and nobody else
sees it.
"""

import contextlib
import http.client
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

import certificates
import hung_rank
import pytest
import running_epd
import scraped
import wait


@pytest.fixture
def epd():
    with running_epd.RunningEpd("--metrics_listen=127.0.0.1:0") as running:
        yield running


def _call(hung, name: str) -> None:
    for rank in hung:
        rank.begin(name)
    assert [rank.result(name)[0] for rank in hung] == [0, 0]


def test_operations_routes_and_phases_of_a_group_are_counted(epd, hung):
    _call(hung, "a")
    done = ("cpu", "prepare", "OK")
    wait.until(lambda: scraped.metric(epd, "epd_operations_total").get(done) == 1, "it is counted")
    text = scraped.get(f"{scraped.base(epd)}/metrics")[2]
    assert scraped.samples(text, "epd_group_operations_total")[("hung", "", "ok")] == 1
    assert scraped.samples(text, "epd_group_ready") == {("hung", ""): 1}
    assert scraped.samples(text, "epd_groups")[("ready",)] == 1
    # Every token of both ranks goes to expert 0, twice: 8 tokens, top_k 2, on rank 0.
    assert scraped.samples(text, "epd_expert_routes_total")[("hung", "", "0")] == 32
    assert scraped.samples(text, "epd_expert_imbalance_ratio") == {("hung", ""): 4}
    routes = scraped.samples(text, "epd_group_routes_total")
    assert routes == {("hung", "", "rank"): 16, ("hung", "", "node"): 16}
    for phase in ("announce", "pull"):
        counted = scraped.samples(text, "epd_operation_phase_seconds_count")
        assert counted[("cpu", "prepare", phase)] == 1, phase
    assert scraped.samples(text, "epd_staging_committed_bytes")[()] > 0
    assert scraped.samples(text, "epd_series")[()] == len(
        [line for line in text.splitlines() if not line.startswith(("#", "epd_series"))]
    )


def test_prepares_that_ranks_make_without_the_worker_are_counted_as_its_own(epd, hung):
    times = 300  # More than there are records.
    for _ in range(times):
        for rank in hung:
            rank.begin("padded", 64)
        assert [rank.result("padded")[0] for rank in hung] == [0, 0]
    done = ("cpu", "prepare", "OK")
    wait.until(
        lambda: scraped.metric(epd, "epd_operations_total").get(done) == times, "all are counted"
    )
    assert scraped.metric(epd, "epd_expert_routes_total")[("hung", "", "0")] == 32 * times
    assert scraped.metric(epd, "epd_group_routes_total") == {
        ("hung", "", "rank"): 16 * times,
        ("hung", "", "node"): 16 * times,
    }
    # Expert 0 alone has rows, 32 of a zone of 64.
    assert scraped.metric(epd, "epd_group_padded_rows_total") == {("hung", ""): 32 * times}


def test_what_pads_the_zones_of_experts_is_counted(epd, hung):
    for key, alignment in (("tight", 1), ("padded", 64)):
        for rank in hung:
            rank.begin(key, alignment)
        assert [rank.result(key)[0] for rank in hung] == [0, 0]
    # Each prepare sends 32 rows to expert 0, and none to the others, which have no zones.
    wait.until(
        lambda: scraped.metric(epd, "epd_group_padded_rows_total") == {("hung", ""): 32},
        "the zone of 64 slots to be counted",
    )


def test_each_of_two_nodes_counts_what_its_own_ranks_do():
    flags = ["--listen=127.0.0.1:0", "--start_grace=0", "--metrics_listen=127.0.0.1:0"]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running_epd.RunningEpd("--node=a", *flags))
        coordinator = re.search(r"\blisten=(\S+)", first.log())[1]
        flags += ["--node=b", f"--coordinator={coordinator}"]
        second = stack.enter_context(running_epd.RunningEpd(*flags))
        nodes = {"a": first, "b": second}
        ranks = [hung_rank.HungRank(epd.socket, rank) for rank, epd in enumerate(nodes.values())]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in ranks:
            rank.expect("joined")
            rank.begin("padded", 64)
        assert [rank.result("padded")[0] for rank in ranks] == [0, 0]

        def of_both(name: str) -> dict[str, dict[tuple[str, ...], float]]:
            return {node: scraped.metric(epd, name) for node, epd in nodes.items()}

        # All 16 routes of either rank lead to expert 0, which rank 0 owns, on node a.
        experts = wait.until(
            lambda: (
                all(of_both("epd_expert_routes_total").values())
                and of_both("epd_expert_routes_total")
            ),
            "both nodes to have counted",
        )
        assert [told[("hung", "", "0")] for told in experts.values()] == [16, 16]
        assert of_both("epd_group_routes_total") == {
            "a": {("hung", "", "rank"): 16},
            "b": {("hung", "", "other_node"): 16},
        }
        padded = of_both("epd_group_padded_rows_total")
        assert padded == {"a": {("hung", ""): 32}, "b": {("hung", ""): 0}}
        of = ("messages", "rows")
        assert of_both("epd_wire_queue_length") == {
            "a": {("b", what): 0 for what in of},
            "b": {("a", what): 0 for what in of},
        }
        linked = {("streams",): 1}
        assert of_both("epd_groups_by_link") == {"a": linked, "b": linked}
        assert of_both("epd_coordinator_leads") == {"a": {(): 1}, "b": {(): 0}}


def test_a_node_without_a_store_coordinates_itself_and_has_no_lease(epd):
    text = scraped.get(f"{scraped.base(epd)}/metrics")[2]
    assert scraped.samples(text, "epd_coordinator_leads") == {(): 1}
    assert "epd_coordinator_term" not in text and "lease_left" not in text


def test_the_rank_that_others_wait_for_is_named_while_it_is_stopped_and_blamed_later(epd, hung):
    _call(hung, "a")
    os.kill(hung[1].pid, signal.SIGSTOP)
    hung[0].begin("b")
    wait.until(
        lambda: scraped.metric(epd, "epd_rank_awaited_seconds").get(("hung", "", "1"), 0) > 1,
        "rank 1 is awaited",
    )
    os.kill(hung[1].pid, signal.SIGCONT)
    hung[1].begin("b")
    assert [rank.result("b")[0] for rank in hung] == [0, 0]
    waited = wait.until(
        lambda: (
            scraped.metric(epd, "epd_rank_waited_for_seconds_total").get(("hung", "", "1"), 0) > 1
            and scraped.metric(epd, "epd_rank_waited_for_seconds_total")
        ),
        "the wait is counted",
    )
    assert waited[("hung", "", "0")] < 1
    waits = scraped.metric(epd, "epd_rank_wait_seconds_bucket")
    above_a_second = [
        waits["hung", "", rank, "+Inf"] - waits["hung", "", rank, "1"] for rank in "01"
    ]
    assert above_a_second == [0, 1]
    assert scraped.metric(epd, "epd_rank_awaited_seconds") == {}


def test_a_workers_death_is_counted_with_its_cause(epd, hung):
    before = scraped.metric(epd, "epd_worker_restarts_total")
    assert set(before.values()) == {0}, "what may come is there, or no alert sees the first"
    os.kill(epd.worker_pid(), signal.SIGKILL)
    wait.until(
        lambda: (
            scraped.metric(epd, "epd_worker_restarts_total")
            == {cause: float(cause == ("cpu", "signal_9")) for cause in before}
        ),
        "the restart is counted",
    )
    lost = wait.until(
        lambda: scraped.metric(epd, "epd_group_transitions_total").get(
            ("worker_lost", "re_forming")
        ),
        "the coordinator says why",
    )
    assert lost == 1
    events = scraped.figures(epd)["figures"]["last_transitions"]
    assert any(event["event"] == "worker_lost" and event["group"] == "hung" for event in events)


def test_figures_come_while_the_worker_does_not_answer(epd, hung):
    os.kill(epd.worker_pid(), signal.SIGSTOP)
    wait.until(lambda: scraped.metric(epd, "epd_workers_stale") == {(): 1}, "it is called stale")
    os.kill(epd.worker_pid(), signal.SIGCONT)


def test_what_is_served_is_no_more_than_a_page_may_know(epd):
    base = scraped.base(epd)
    status, headers, page = scraped.get(f"{base}/")
    assert status == 200 and page.startswith("<!doctype html>")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; connect-src 'self'")
    assert not [name for name in headers if name.startswith("Access-Control")]
    # Nothing is loaded from elsewhere.
    assert not re.findall(r"(?:src|href)=\"(?!#)|https?://(?!www\.w3\.org/2000/svg)", page)
    for path in ("/nothing", "/metrics/../../etc/passwd", "/figures"):
        assert scraped.get(base + path)[0] == 404
    assert scraped.get(f"{base}/metrics", Host="evil.example")[0] == 421
    assert scraped.get(f"{base}/figures.json", Host="evil.example")[0] == 421
    with contextlib.closing(http.client.HTTPConnection(base.removeprefix("http://"))) as connection:
        connection.request("POST", "/metrics", body=b"x" * 100)
        assert connection.getresponse().status in (404, 405)


def test_with_a_token_nobody_reads_without_it(tmp_path):
    token = tmp_path / "token"
    token.write_text("correct horse battery\n")
    token.chmod(0o600)
    flags = ("--metrics_listen=127.0.0.1:0", f"--metrics_token={token}")
    with running_epd.RunningEpd(*flags) as epd:
        url = f"{scraped.base(epd)}/metrics"
        status, headers, text = scraped.get(url)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "epd_" not in text.replace("metrics_token", "")
        assert scraped.get(url, Authorization="Bearer correct horse batterx")[0] == 401
        assert scraped.get(url, Authorization="Bearer correct horse battery")[0] == 200
        assert "correct horse" not in epd.log()


def test_over_tls_a_scraper_sees_the_certificate_and_plain_http_nothing(tmp_path):
    authority = certificates.Authority(tmp_path)
    authority.sign("n0")
    flags = [f"--metrics_cert={tmp_path}/n0.pem", f"--metrics_key={tmp_path}/n0.key"]
    with running_epd.RunningEpd("--metrics_listen=127.0.0.1:0", *flags) as epd:
        plain = f"{scraped.base(epd)}/metrics"
        trusting = ssl.create_default_context(cafile=authority.ca)
        secure = plain.replace("http:", "https:")
        with urllib.request.urlopen(secure, timeout=10, context=trusting) as answer:
            assert "epd_build_info" in answer.read().decode()
        with pytest.raises(OSError):
            urllib.request.urlopen(plain, timeout=10)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--metrics_listen=0.0.0.0:0",), "metrics_token"),
        (("--metrics_listen=127.0.0.1:0", "--metrics_token=/nonexistent"), "metrics_token"),
        (("--metrics_listen=127.0.0.1:0", "--metrics_cert=/nonexistent"), "metrics_key"),
        (("--metrics_listen=192.0.2.1:9400",), "metrics_token"),
    ],
)
def test_what_cannot_be_served_safely_is_an_error_at_the_start(tmp_path, flags, named):
    command = [running_epd.program("epd"), f"--socket={tmp_path}/e.sock", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert named in ended.stderr


def test_a_port_serves_one_epd(epd, tmp_path):
    taken = scraped.base(epd).removeprefix("http://")
    flags = [f"--socket={tmp_path}/e.sock", f"--metrics_listen={taken}"]
    ended = subprocess.run(
        [running_epd.program("epd"), *flags], capture_output=True, text=True, timeout=20
    )
    assert ended.returncode == 1
    assert "metrics_listen" in ended.stderr


def test_connections_that_say_nothing_or_never_stop_do_not_keep_a_scraper_out(epd):
    host, port = scraped.base(epd).removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            held = stack.enter_context(socket.create_connection((host, int(port))))
            held.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        began = time.monotonic()
        # Four are served at a time, for five seconds each at most.
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        waiting = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        waiting.sendall(request)
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"
        assert time.monotonic() - began < 25
        endless = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                endless.sendall(b"x" * 4096)
        assert epd.process.poll() is None
