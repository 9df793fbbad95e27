"""libepd_program.so."""

from epd import _environment
from epd._program import Library

library = Library(_environment.library_path("EPD_PROGRAM_LIBRARY", "libepd_program.so"))
