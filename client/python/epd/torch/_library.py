"""libepd_program.so."""

import signal

from epd import _environment
from epd._program import Library

library = Library(_environment.library_path("EPD_PROGRAM_LIBRARY", "libepd_program.so"))
# Else the main thread hears of Ctrl-C when the other ranks come. A program with a handler of its own decides itself.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    library.c.epd_program_watch_interrupts()
