"""Compiles CUDA kernels into a fatbin and embeds it as data.

deploy/setup finds nvcc and a ptxas of CUDA 12, or installs them, and writes their paths into .venv/bazelrc as EPD_NVCC and
EPD_PTXAS. The fatbin is loaded at run
time with the driver's own functions, so nothing that is built here links libcuda or the CUDA runtime.
"""

_FOUND = """
# The driver's types and prototypes alone.
cc_library(
    name = "driver_header",
    hdrs = ["include/cuda.h"],
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
# Fails only for those who build it.
genrule(
    name = "missing",
    outs = ["cuda_header_missing.h"],
    cmd = "echo 'no nvcc: run deploy/setup, which finds or installs one' >&2; exit 1",
)

cc_library(
    name = "driver_header",
    hdrs = [":missing"],
    visibility = ["//visibility:public"],
)
"""

def _tool(repository_ctx, variable):
    """The path in a variable, and the last line of what the tool says of its version; empty: it does not run."""
    path = repository_ctx.os.environ.get(variable, "")
    asked = repository_ctx.execute([path, "--version"]) if path else None
    if not asked or asked.return_code != 0:
        return "", ""
    return path, asked.stdout.strip().split("\n")[-1]

def _cuda_compiler_impl(repository_ctx):
    nvcc, version = _tool(repository_ctx, "EPD_NVCC")
    ptxas, ptxas_version = _tool(repository_ctx, "EPD_PTXAS")
    repository_ctx.file("BUILD", _FOUND if nvcc else _MISSING)
    if nvcc:
        toolkit = repository_ctx.path(nvcc).dirname.dirname
        repository_ctx.symlink(toolkit.get_child("include").get_child("cuda.h"), "include/cuda.h")

    # The version goes into the command, and so into the key of every cache.
    repository_ctx.file("nvcc.bzl", "NVCC = %r\nPTXAS = %r\nVERSION = %r\n" % (
        nvcc,
        ptxas,
        ptxas_version or version,
    ))

cuda_compiler = repository_rule(
    implementation = _cuda_compiler_impl,
    configure = True,
    environ = [
        "EPD_NVCC",
        "EPD_PTXAS",
    ],
    local = True,
)
