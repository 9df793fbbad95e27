"""The version of everything that is shipped. client/c/epd_client.h, which programs compile against, repeats it and is compared
when the C library is built; the changelog is in deploy/README.md."""

RELEASE = "0.1.0"

# `local_defines` of what says its version in C++.
RELEASE_DEFINES = ['EPD_RELEASE=\\"%s\\"' % RELEASE]
