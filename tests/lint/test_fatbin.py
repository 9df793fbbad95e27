"""Goal: kernels that keep much of each thread in memory, where registers were meant, are not built; a few words are let be."""

import pathlib
import subprocess

import pytest

_FATBIN = pathlib.Path(__file__).parents[2] / "bazel" / "fatbin.sh"
# As ptxas says it, on stderr.
_REPORT = """
ptxas info    : Compiling entry function 'epd_kernel' for 'sm_90'
ptxas info    : Function properties for epd_kernel
    {stack} bytes stack frame, {stack} bytes spill stores, {stack} bytes spill loads
ptxas info    : Used 168 registers, used 0 barriers, {stack} bytes cumulative stack size
"""


def _compile(folder: pathlib.Path, report: str, ptxas_ends: int = 0) -> subprocess.CompletedProcess:
    """Runs it over compilers that do nothing, of which ptxas says `report`."""
    says = folder / "report"
    says.write_text(report)
    last = (
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done; echo ".version 9.0" >"$out"'
    )
    for name, text in (
        ("nvcc", last),
        ("ptxas", f"cat {says} >&2; {last}; exit {ptxas_ends}"),
        ("fatbinary", 'echo image >"${1#--create=}"'),
    ):
        script = folder / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    options = folder / "options"
    options.write_text("-std=c++20\n-gencode arch=compute_90,code=[sm_90,compute_90]\n")
    command = ["bash", _FATBIN, folder / "nvcc", folder / "ptxas", options, "kernels.cu"]
    return subprocess.run(
        [*command, folder / "out"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("stack", [0, 56, 128])
def test_a_few_words_are_built(tmp_path: pathlib.Path, stack: int) -> None:
    ran = _compile(tmp_path, _REPORT.format(stack=stack))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (tmp_path / "out").read_text() == "image\n"


def test_a_kernel_that_keeps_arrays_in_memory_is_named(tmp_path: pathlib.Path) -> None:
    ran = _compile(tmp_path, _REPORT.format(stack=8) + _REPORT.format(stack=424))
    assert ran.returncode != 0
    assert "sm_90: epd_kernel keeps 424 bytes of each thread in memory" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_what_the_assembler_refuses_is_said(tmp_path: pathlib.Path) -> None:
    ran = _compile(tmp_path, "ptxas fatal   : Unresolved extern function", ptxas_ends=1)
    assert ran.returncode != 0
    assert "Unresolved extern function" in ran.stderr
