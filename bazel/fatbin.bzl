"""Targets that need the compiler that bazel/cuda.bzl found."""

load("@cuda_compiler//:nvcc.bzl", "NVCC", "NVCC_VERSION")

def epd_cuda_fatbin(name, src, hdrs, options, **kwargs):
    """Compiles `src` to <name>.fatbin, for the architectures that the file `options` names."""
    command = "echo 'no nvcc: run deploy/setup, which finds or installs one' >&2; exit 1"
    if NVCC:
        command = "%s --options-file $(location %s) -I. -fatbin -o $@ $(location %s) # %s" % (
            NVCC,
            options,
            src,
            NVCC_VERSION,
        )
    native.genrule(
        name = name,
        srcs = [src, options] + hdrs,
        outs = [name + ".fatbin"],
        cmd = command,
        message = "Compiling CUDA kernels of",
        **kwargs
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
