"""The headers of XLA's foreign function interface, taken from the jaxlib that deploy/setup installed in .venv.

jaxlib ships them (jax.ffi.include_dir()), so handler and runtime always match. deploy/setup writes .venv/bazelrc with
jaxlib's version in EPD_JAXLIB; a change of that value makes Bazel look again.
"""

_FOUND = """
cc_library(
    name = "headers",
    hdrs = glob(["include/xla/ffi/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
# Fails only for those who build it: the rest of epd needs no JAX.
genrule(
    name = "missing",
    outs = ["xla_ffi_headers_missing.h"],
    cmd = "echo 'no jaxlib in .venv: run deploy/setup, which installs the XLA FFI headers' >&2; exit 1",
)

cc_library(
    name = "headers",
    hdrs = [":missing"],
    visibility = ["//visibility:public"],
)
"""

def _include_dir(repository_ctx):
    root = repository_ctx.path(Label("@epd//:WORKSPACE")).dirname
    lib = root.get_child(".venv").get_child("lib")
    if not lib.exists:
        return None
    for python in lib.readdir():
        include = python.get_child("site-packages").get_child("jaxlib").get_child("include")
        if include.get_child("xla").exists:
            return include
    return None

def _xla_ffi_headers_impl(repository_ctx):
    include = _include_dir(repository_ctx)
    if include:
        repository_ctx.symlink(include, "include")
    repository_ctx.file("BUILD", _FOUND if include else _MISSING)

xla_ffi_headers = repository_rule(
    implementation = _xla_ffi_headers_impl,
    configure = True,
    environ = ["EPD_JAXLIB"],
    local = True,
)
