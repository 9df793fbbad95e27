"""Runs a command as systemd would run a confined service: confined.py FILE COMMAND...

Without capabilities, and with no system call but those that FILE names; the others fail with EPERM."""

import ctypes
import errno
import os
import pathlib
import re
import struct
import sys

_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def _filter(calls: set[str]) -> bytes:
    """Classic BPF over struct seccomp_data, whose first word is the number of the call."""
    header = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", header))
    words = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for call in sorted(calls & numbers.keys()):
        words.append(struct.pack("HBBI", _EQUALS, 0, 1, int(numbers[call])))
        words.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    return b"".join([*words, struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | errno.EPERM)])


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*words: object) -> None:
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{words}")

    for capability in range(64):  # More than there are: the others fail.
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = _filter(set(pathlib.Path(sys.argv[1]).read_text().split()))
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    whole = Program(len(program) // 8, ctypes.addressof(buffer))
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
