"""Fuzz targets: LLVMFuzzerTestOneInput in NAME.cc, a short replay in an ordinary build, libFuzzer with --config=fuzz."""

load("//bazel:cc.bzl", "EPD_COPTS")

def epd_fuzz_test(name, deps):
    native.cc_test(
        name = name,
        size = "small",
        srcs = [name + ".cc"],
        copts = EPD_COPTS,
        linkopts = select({
            "//tests/fuzz:libfuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + [":input"] + select({
            "//tests/fuzz:libfuzzer": [],
            "//conditions:default": [":replay"],
        }),
    )
