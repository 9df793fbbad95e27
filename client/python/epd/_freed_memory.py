"""What the allocator does with the memory of results that nobody needs any more.

glibc gives a freed block at the end of its heap back to the kernel, and blocks of some sizes at once. The next step's result is then fresh
memory, of which each page is a fault and cleared anew: in dispatches of 8 MB a rank that was more CPU time than the
exchange itself (tests/bench/README.md).
"""

import ctypes
import functools
import os

from epd import _environment

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# The most that glibc takes. What is larger is mapped, and given back, by itself.
_LARGEST_OF_HEAP = 32 << 20
# Who sets one of these has a will of their own.
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def _is_set_otherwise() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in _OF_THE_USER)


@functools.cache
def keep() -> bool:
    """Lets this process keep as much freed memory as EPD_KEEP_FREED_MIB says; whether it does. ValueError if that is no number.

    Other allocators than glibc's take no notice.
    """
    most = _environment.keep_freed_mebibytes()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if most == 0 or mallopt is None or _is_set_otherwise():
        return False
    return bool(
        mallopt(_M_TRIM_THRESHOLD, most << 20) and mallopt(_M_MMAP_THRESHOLD, _LARGEST_OF_HEAP)
    )
