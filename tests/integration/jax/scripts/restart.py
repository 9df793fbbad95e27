"""A job that outlives its daemon, without compiling anew: the parent restarts epd when asked to on stdout and says so on
stdin."""

import time

import alone
import compiles
import epd.jax as ep

_SECONDS = 5


def _restart(step) -> None:
    print("restart", flush=True)
    assert input() == "restarted"
    try:
        with ep.ep_errors():
            # A call of ranks of one process can be over before the daemon's end is heard.
            soon = time.monotonic() + _SECONDS
            while time.monotonic() < soon:
                alone.run_once(step)
    except ep.EpError as error:
        assert error.code == "UNAVAILABLE", error
        assert "epd" in str(error), error
    else:
        raise AssertionError(f"the daemon was replaced, but no call of {_SECONDS} s said so")
    for _ in range(3):
        alone.run_once(step)


def main() -> None:
    alone.bootstrap()
    step = alone.layer()
    alone.run_once(step)
    with compiles.none():
        for _ in range(2):
            _restart(step)
    print("restart: fine", flush=True)


if __name__ == "__main__":
    main()
