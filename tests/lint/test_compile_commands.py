"""Goal: a source's compile command, run in the root, is the one that Bazel runs in a folder of its own."""

import json
import pathlib

import compile_commands

_FOLDERS = {"bazel-out": "/base/root/bazel-out", "external": "/base/external"}


def _action(source: str, *arguments: str) -> dict[str, list[str]]:
    output = ["-MD", "-MF", "a.d", "-c", source, "-o", "a.o"]
    return {"arguments": ["/usr/bin/clang", "-O2", *arguments, *output]}


def _parse(*actions: dict[str, list[str]]) -> compile_commands.Commands:
    return compile_commands.parse(json.dumps({"actions": actions}), _FOLDERS)


def test_the_options_are_those_of_the_compile_command() -> None:
    (command,) = _parse(_action("a.cc", "-iquote", ".")).values()
    assert compile_commands.options(command) == ["-O2", "-iquote", "."]


def test_folders_of_bazels_are_absolute() -> None:
    action = _action("a.cc", "-isystem", "external/x", "-Ibazel-out/k8/bin", "-iquote", "daemon")
    (command,) = _parse(action).values()
    assert compile_commands.options(command) == [
        *("-O2", "-isystem", "/base/external/x", "-I/base/root/bazel-out/k8/bin"),
        *("-iquote", "daemon"),
    ]


def test_generated_sources_and_second_compilations_are_left_out() -> None:
    commands = _parse(
        _action("a.cc", "-DFIRST"), _action("a.cc"), _action("bazel-out/k8/bin/b.pb.cc")
    )
    assert list(commands) == ["a.cc"]
    assert "-DFIRST" in commands["a.cc"]


def test_the_database_names_file_folder_and_arguments() -> None:
    text = compile_commands.database(pathlib.Path("/clone"), _parse(_action("a.cc")))
    assert json.loads(text) == [
        {
            "directory": "/clone",
            "file": "a.cc",
            "arguments": ["clang++", "-O2", "-c", "a.cc"],
        }
    ]
