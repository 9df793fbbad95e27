"""Writes the wheel of the Python package epd: a zip that is the same, byte for byte, for the same input.

Nothing in it is built against Python: the libraries are loaded by ctypes, the programs are programs. So one wheel serves every
Python 3. The programs lie in epd/bin, the libraries of Debian's that they need in epd/lib/epd, where they look first.
"""

import argparse
import base64
import hashlib
import stat
import zipfile
from pathlib import Path

import vendored

_NAME = "epd"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # The oldest time that a zip can hold.
_COMMANDS = ("epd", "epd-worker", "epctl")
_XLA = "XLA's FFI headers, of jaxlib, Apache License 2.0 (common-licenses/Apache-2.0): compiled into libepd_jax.so"


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="<name>-<version>-<tag>.whl")
    parser.add_argument("--file", action="append", required=True, metavar="PATH_IN_WHEEL=SOURCE")
    parser.add_argument("--program", action="append", required=True, type=Path)
    parser.add_argument("--header", action="append", default=[], metavar="DEBIAN_PACKAGE")
    return parser.parse_args()


def _metadata(version: str, licenses: list[str]) -> str:
    return "\n".join(
        (
            "Metadata-Version: 2.4",
            f"Name: {_NAME}",
            f"Version: {version}",
            "Summary: Expert parallelism for JAX and PyTorch through the epd node daemon, which it holds",
            "Requires-Python: >=3.11",
            "Provides-Extra: jax",
            'Requires-Dist: jax>=0.10.2; extra == "jax"',
            'Requires-Dist: numpy; extra == "jax"',
            "Provides-Extra: flax",
            'Requires-Dist: epd[jax]; extra == "flax"',
            'Requires-Dist: flax>=0.12; extra == "flax"',
            "Provides-Extra: torch",
            'Requires-Dist: torch>=1.13; extra == "torch"',
            "Provides-Extra: cluster",
            'Requires-Dist: grpcio>=1.60; extra == "cluster"',
            'Requires-Dist: protobuf>=4.25; extra == "cluster"',
            *(f"License-File: {path}" for path in licenses),
            "",
        )
    )


def _carried(programs: list[Path]) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """The programs with their libraries, by path in the wheel; and which package each library is of."""
    contents, packages = {}, {}
    for program in programs:
        contents[f"epd/bin/{program.name}"] = program.read_bytes()
        for name, file in vendored.libraries_of(program).items():
            if f"epd/lib/epd/{name}" not in contents:
                contents[f"epd/lib/epd/{name}"] = file.read_bytes()
                packages.setdefault(vendored.package_of(file), []).append(name)
    return contents, packages


def _record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


def _write(archive: zipfile.ZipFile, path: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    # pip makes executable what is a file and executable here.
    executable = ".so" in path or path.startswith("epd/bin/")
    entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    archive.writestr(entry, data)


def main() -> None:
    args = _parse_args()
    _, version, tag = args.out.name.removesuffix(".whl").split("-", 2)
    contents, packages = _carried(args.program)
    for item in args.file:
        path, source = item.split("=", 1)
        contents[path] = Path(source).read_bytes()
    info = f"{_NAME}-{version}.dist-info"
    licenses = vendored.licenses(packages, args.header, _XLA)
    for path, data in licenses.items():
        contents[f"{info}/licenses/{path}"] = data
    contents[f"{info}/METADATA"] = _metadata(version, sorted(licenses)).encode()
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: epd\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    commands = "".join(f"{name} = epd._programs:main\n" for name in _COMMANDS)
    contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{commands}".encode()
    record = [_record_line(path, data) for path, data in sorted(contents.items())]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(args.out, "w") as archive:
        for path, data in sorted(contents.items()):
            _write(archive, path, data)


if __name__ == "__main__":
    main()
