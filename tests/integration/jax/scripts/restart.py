"""A job that outlives its daemon: the parent restarts epd when asked to on stdout and says so on stdin."""

import alone
import epd.jax as ep


def main() -> None:
    alone.bootstrap()
    step = alone.layer()
    alone.run_once(step)
    for _ in range(2):
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
    print("restart: fine", flush=True)


if __name__ == "__main__":
    main()
