"""Writes the wheel of the Python package epd: a zip that is the same, byte for byte, for the same input.

The libraries need no Python headers (they are loaded by ctypes), so one wheel serves every Python 3.
"""

import argparse
import base64
import hashlib
import zipfile
from pathlib import Path

_NAME = "epd"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # The oldest time that a zip can hold.


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="<name>-<version>-<tag>.whl")
    parser.add_argument("--file", action="append", required=True, metavar="PATH_IN_WHEEL=SOURCE")
    return parser.parse_args()


def _metadata(version: str) -> str:
    return "\n".join(
        (
            "Metadata-Version: 2.1",
            f"Name: {_NAME}",
            f"Version: {version}",
            "Summary: Expert parallelism for JAX and PyTorch through the epd node daemon",
            "Requires-Python: >=3.11",
            "Requires-Dist: jax>=0.10.2",
            "Requires-Dist: numpy",
            "Provides-Extra: flax",
            'Requires-Dist: flax>=0.12; extra == "flax"',
            "",
        )
    )


def _record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


def _write(archive: zipfile.ZipFile, path: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o755 if ".so" in path else 0o644) << 16
    archive.writestr(entry, data)


def main() -> None:
    args = _parse_args()
    _, version, tag = args.out.name.removesuffix(".whl").split("-", 2)
    contents = {
        path: Path(source).read_bytes()
        for path, source in (item.split("=", 1) for item in args.file)
    }
    info = f"{_NAME}-{version}.dist-info"
    contents[f"{info}/METADATA"] = _metadata(version).encode()
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: epd\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = [_record_line(path, data) for path, data in sorted(contents.items())]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(args.out, "w") as archive:
        for path, data in sorted(contents.items()):
            _write(archive, path, data)


if __name__ == "__main__":
    main()
