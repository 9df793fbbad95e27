"""C++ rules of epd: the native ones with epd's warnings as errors."""

load(":version.bzl", "check_bazel")

check_bazel()

# clang-only warning groups stand in .bazelrc (--config=clang).
EPD_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
]

# Of targets that have failpoints (proto/failpoint/failpoint.h): with --config=failpoints they are there.
EPD_FAILPOINT_COPTS = select({
    "//proto/failpoint:on": ["-DEPD_FAILPOINTS"],
    "//conditions:default": [],
})

def epd_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = EPD_COPTS + copts, **kwargs)

def epd_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = EPD_COPTS + copts, **kwargs)

def epd_shipped_binary(name, linkopts = [], **kwargs):
    """A program that is installed. It looks for libraries in ../lib/epd beside its folder, where packages that carry them put
    them, and then where the system has them.

    RPATH, not the newer RUNPATH: it counts for the libraries' own libraries as well.
    """
    epd_cc_binary(
        name = name,
        linkopts = linkopts + [
            "-Wl,--disable-new-dtags",
            "-Wl,-rpath,$$ORIGIN/../lib/epd",
        ],
        **kwargs
    )

def epd_cc_test(name, copts = [], deps = [], size = "small", **kwargs):
    """A test with GoogleTest, GoogleMock and their main()."""
    native.cc_test(
        name = name,
        size = size,
        copts = EPD_COPTS + copts,
        deps = deps + ["//bazel/third_party:gtest"],
        **kwargs
    )
