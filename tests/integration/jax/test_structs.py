"""Goal: the package's ctypes have the fields of the C headers, in their order and of their size."""

import json
import re
import subprocess

import pytest
from harness import ROOT, clean_environment, python

_PRINT_FIELDS = """
import ctypes, json
from epd import _group_struct, _operation_structs, _program
kinds = {"epd_group_spec": _group_struct.Spec, "epd_program_group": _group_struct.Group,
         "epd_program_rank": _program.Rank, "epd_program_call": _program.Call, "epd_error": _program.Error,
         "epd_program_begun": _program.Begun, "epd_key": _operation_structs.Key,
         "epd_prepare_args": _operation_structs.PrepareArgs, "epd_scatter_args": _operation_structs.ScatterArgs,
         "epd_gather_args": _operation_structs.GatherArgs}
print(json.dumps({name: [(field, ctypes.sizeof(kind)) for field, kind in cls._fields_] for name, cls in kinds.items()}))
"""
_SIZES = {"size_t": 8, "int64_t": 8, "uint64_t": 8, "uint8_t": 1, "char": 1, "epd_key": 48}


def _fields_in_c(header: str, struct: str) -> list[list]:
    """[name, bytes] of each field, in order."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(), flags=re.DOTALL)
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", text, re.DOTALL)[1]
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        kind, name, count = re.fullmatch(r"(.*?)\s*(\w+)(?:\[(\d+)\])?", declaration).groups()
        size = 8 if "*" in kind else _SIZES.get(kind, 4)
        fields.append([name, size * int(count or 1)])
    return fields


@pytest.fixture(scope="module")
def fields_in_python() -> dict:
    ended = subprocess.run(
        python("-c", _PRINT_FIELDS),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("header", "struct"),
    [
        ("client/c/epd_client.h", "epd_group_spec"),
        ("client/c/epd_client.h", "epd_error"),
        ("client/c/epd_client.h", "epd_key"),
        ("client/c/epd_client.h", "epd_prepare_args"),
        ("client/c/epd_client.h", "epd_scatter_args"),
        ("client/c/epd_client.h", "epd_gather_args"),
        ("client/program/epd_program.h", "epd_program_group"),
        ("client/program/epd_program.h", "epd_program_rank"),
        ("client/program/epd_program.h", "epd_program_call"),
        ("client/program/epd_program.h", "epd_program_begun"),
    ],
)
def test_fields_are_those_of_the_header(fields_in_python: dict, header: str, struct: str):
    assert fields_in_python[struct] == _fields_in_c(header, struct)
