"""The headers of XLA's foreign function interface, of the oldest jaxlib that epd.jax supports.

A jaxlib loads what was built on its own headers or older ones. deploy/setup takes them from the wheel that
deploy/requirements-ffi.txt names, leaves them in .venv/xla_ffi and writes .venv/bazelrc with the version in EPD_XLA_FFI; a
change of that value makes Bazel look again.
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
    cmd = "echo 'no headers in .venv/xla_ffi: run deploy/setup, which puts them there' >&2; exit 1",
)

cc_library(
    name = "headers",
    hdrs = [":missing"],
    visibility = ["//visibility:public"],
)
"""

def _include_dir(repository_ctx):
    root = repository_ctx.path(Label("@epd//:WORKSPACE")).dirname
    include = root.get_child(".venv").get_child("xla_ffi").get_child("include")
    return include if include.exists else None

def _xla_ffi_headers_impl(repository_ctx):
    include = _include_dir(repository_ctx)
    if include:
        repository_ctx.symlink(include, "include")
    repository_ctx.file("BUILD", _FOUND if include else _MISSING)

xla_ffi_headers = repository_rule(
    implementation = _xla_ffi_headers_impl,
    configure = True,
    environ = ["EPD_XLA_FFI"],
    local = True,
)
