"""What the package itself does not require: each API brings its own, as an extra of the wheel."""

import importlib.util


def require(extra: str, *modules: str) -> None:
    """ImportError that begins with the remedy, if one of the modules, which the extra brings, is not there."""
    missing = [name for name in modules if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        raise ImportError(
            f"pip install 'epd[{extra}]': epd.{extra} needs {' and '.join(missing)}, which this Python does not have"
        )
