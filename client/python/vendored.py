"""The shared libraries that a program needs of Debian's, and the licences under which they are given on."""

import pathlib
import re
import subprocess

# Those of the C and C++ runtimes, which every system has of its own: a second copy of them would meet the driver's in one
# process. manylinux has the same list.
_OF_THE_SYSTEM = re.compile(
    r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s)\.so\."
)
_NEEDED = re.compile(r"^\s*(?P<name>\S+) => (?P<path>/\S+) \(")
_COMMON_LICENSE = re.compile(r"/usr/share/common-licenses/([\w.+-]*\w)")
_DOC = pathlib.Path("/usr/share/doc")
_COMMON = pathlib.Path("/usr/share/common-licenses")


def libraries_of(program: pathlib.Path) -> dict[str, pathlib.Path]:
    """{the name by which the program asks for it: the file}, with what the libraries need themselves.

    Raises:
      LookupError: this machine lacks one.
    """
    shown = subprocess.run(["ldd", program], check=True, text=True, capture_output=True).stdout
    if "not found" in shown:
        raise LookupError(f"{program} lacks libraries here: run deploy/setup\n{shown}")
    found = (_NEEDED.match(line) for line in shown.splitlines())
    return {
        one["name"]: pathlib.Path(one["path"]).resolve()
        for one in found
        if one and not _OF_THE_SYSTEM.match(one["name"])
    }


def package_of(file: pathlib.Path) -> str:
    """The Debian package that a file is of."""
    # /lib is a link to /usr/lib, and packages name their files either way.
    for name in (str(file), str(file).removeprefix("/usr")):
        asked = subprocess.run(["dpkg-query", "-S", name], text=True, capture_output=True)
        if asked.returncode == 0:
            return asked.stdout.split(":")[0]
    raise LookupError(f"{file} is of no Debian package, so its licence is not known")


def _version(package: str) -> str:
    command = ["dpkg-query", "-W", "-f=${Version}", package]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def licenses(carried: dict[str, list[str]], headers: list[str], more: str) -> dict[str, bytes]:
    """Files for dist-info/licenses. `carried`: package -> its libraries; `headers`: packages that are compiled in."""
    lines = [
        "What this wheel holds beside epd, each with Debian's record of its copyright in the folder of its package.",
        "",
    ]
    files = {}
    for package in sorted({*carried, *headers}):
        text = (_DOC / package / "copyright").read_bytes()
        files[f"{package}/copyright"] = text
        for name in set(_COMMON_LICENSE.findall(text.decode(errors="replace"))):
            if (_COMMON / name).exists():
                files[f"common-licenses/{name}"] = (_COMMON / name).read_bytes()
        what = (
            ", ".join(sorted(carried.get(package, [])))
            or "compiled into the programs and libraries"
        )
        lines.append(f"{package} {_version(package)}: {what}")
    lines += ["", more, ""]
    return {"NOTICES.txt": "\n".join(lines).encode(), **files}
