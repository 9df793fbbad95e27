"""Goal: two independent jobs share one group, and the death of one in mid-operation leaves the other as it was."""

import signal
from concurrent.futures import ThreadPoolExecutor

from harness import Fleet, Setup, running_daemon


def test_two_jobs_share_a_group_and_one_of_them_is_killed():
    with running_daemon() as daemon:
        fleets = []
        for tenant in ("a", "b"):
            # The group's name is that of the job, which both give; each has its own key-value store, and so nonce.
            environment = {
                "EPD_JOB": "shared",
                "EPD_TENANT": tenant,
                "EPD_TEST_SHARED": str(daemon.folder),
            }
            folder = daemon.folder / tenant
            folder.mkdir()
            setup = Setup("tenants", processes=2, mesh=(1, 2), environment=environment)
            fleets.append(Fleet(setup, folder, daemon))
        with ThreadPoolExecutor() as threads:
            a, b = threads.map(lambda fleet: fleet.run(150), fleets)
        check = "check_exchanges_stay_right_whatever_the_other_tenant_does"
        a.expect(check)
        a.expect_clean_exit()
        assert b.statuses == [0, -signal.SIGKILL], (b.logs, b.outcomes)
        assert b.outcomes[0] == {check: "ok"}, b.outcomes
        log = daemon.log.read_text(errors="replace")
        assert "tenant=a" in log and "tenant=b" in log, log
