"""A job that outlives its daemon, without compiling anew: the parent restarts epd when asked to on stdout and says so on
stdin."""

import alone
import compiles
import epd.jax as ep


def _restart(step) -> None:
    print("restart", flush=True)
    assert input() == "restarted"
    try:
        with ep.ep_errors():
            alone.run_once(step)
    except ep.EpError as error:
        assert error.code == "UNAVAILABLE", error
        assert "epd" in str(error), error
    else:
        raise AssertionError("the daemon was replaced, but the next call did not say so")
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
