"""Holds the kernel's lock of a file, as anybody can who may write to it: by a write() from memory that does not come."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

# <linux/userfaultfd.h>: memory of which every first access waits until somebody says what stands there.
_SYSCALL = {"x86_64": 323, "aarch64": 282}
_API = 0xAA
_IOCTL_API = 0xC018AA3F
_IOCTL_REGISTER = 0xC020AA00
_IOCTL_ZEROPAGE = 0xC020AA04
_MODE_MISSING = 1
_PAGE_BYTES = 4096


def refused() -> str:
    """Why no file can be held here; empty: it can."""
    fd = _faults()
    if fd < 0:
        return f"no userfaultfd: {os.strerror(ctypes.get_errno())}"
    os.close(fd)
    return ""


def _faults() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SYSCALL.get(platform.machine(), -1)
    return libc.syscall(ctypes.c_long(number), ctypes.c_long(os.O_CLOEXEC | os.O_NONBLOCK))


@contextlib.contextmanager
def held(file: int) -> Iterator[None]:
    """Until the end nobody else can write to the file or give its pages back."""
    # A process of its own: a thread that waits like this takes no signal, and seteuid() would wait for it.
    holder = subprocess.Popen(
        [sys.executable, __file__, str(file)],
        pass_fds=[file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n", "the file cannot be held"
        yield
    finally:
        holder.communicate(timeout=30)


def _hold_until_told(file: int) -> None:
    faults = _faults()
    fcntl.ioctl(faults, _IOCTL_API, struct.pack("QQQ", _API, 0, 0))
    memory = mmap.mmap(-1, _PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page = (ctypes.c_char * _PAGE_BYTES).from_buffer(memory)
    start = ctypes.addressof(page)
    fcntl.ioctl(faults, _IOCTL_REGISTER, struct.pack("QQQQ", start, _PAGE_BYTES, _MODE_MISSING, 0))
    writer = threading.Thread(target=os.pwrite, args=(file, page, 0))
    writer.start()
    while not _waits_for_memory(writer):
        time.sleep(0.01)
    print("held", flush=True)
    sys.stdin.read()
    fcntl.ioctl(faults, _IOCTL_ZEROPAGE, struct.pack("QQQq", start, _PAGE_BYTES, 0, 0))
    writer.join()


def _waits_for_memory(thread: threading.Thread) -> bool:
    with open(f"/proc/self/task/{thread.native_id}/wchan") as wchan:
        where = wchan.read()
    if where in ("", "0"):  # A kernel that does not tell.
        time.sleep(0.2)
        return True
    return "userfault" in where


if __name__ == "__main__":
    _hold_until_told(int(sys.argv[1]))
