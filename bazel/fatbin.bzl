"""Targets that need the compiler that bazel/cuda.bzl found."""

load("@cuda_compiler//:nvcc.bzl", "NVCC", "PTXAS", "VERSION")

# As in "Build cuda_12.9.r12.9/compiler.36037853_0". Drivers from 525 on load all of CUDA 12.
_OLDEST_DRIVER = "525" if "cuda_12." in VERSION else "580"

def epd_cuda_fatbin(name, src, hdrs, options, **kwargs):
    """Compiles `src` to <name>.fatbin, for the architectures that the file `options` names.

    <name>_driver.inc is the release of the oldest driver that loads it.
    """
    command = "echo 'no nvcc: run deploy/setup, which finds or installs one' >&2; exit 1"
    if NVCC:
        command = "$(location //bazel:fatbin.sh) '%s' '%s' $(location %s) $(location %s) $@ # %s" % (
            NVCC,
            PTXAS,
            options,
            src,
            VERSION,
        )
    native.genrule(
        name = name,
        srcs = [src, options] + hdrs,
        outs = [name + ".fatbin"],
        cmd = command,
        message = "Compiling CUDA kernels of",
        tools = ["//bazel:fatbin.sh"],
        **kwargs
    )
    native.genrule(
        name = name + "_driver",
        outs = [name + "_driver.inc"],
        cmd = "echo %s > $@" % _OLDEST_DRIVER,
    )

def epd_embedded_bytes(name, src, **kwargs):
    """Makes <name>.inc: the bytes of a file as the inside of a C++ array."""
    native.genrule(
        name = name,
        srcs = [src],
        outs = [name + ".inc"],
        cmd = "od -An -v -tx1 $< | sed 's/ \\([0-9a-f][0-9a-f]\\)/0x\\1,/g' > $@",
        **kwargs
    )
