"""Goal: a README that names a path or a command that is not there, or not run, is refused, and a true one is not."""

import pytest
import readmes
import tree

_FILES = {
    "daemon/node/node.cc": "",
    "daemon/node/node_sessions.cc": "",
    "daemon/BUILD": 'cc_binary(name = "epd")\ncc_library(name = "daemon")\n',
    "tests/run": "#!/usr/bin/env bash\n",
    "tests/unit/x_test.py": 'run("tests/run", "--cpp-only")\n',
}


def _check(text: str, path: str = "README.md") -> list[str]:
    return readmes.check({**_FILES, path: text})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("README.md", "See `daemon/node/node.cc`, `daemon/node/`, `daemon`, `node.cc` and `BUILD`.\n"),
        ("README.md", "A [link](daemon/BUILD), [another](daemon/node/node.cc#x) and [a page](https://a.b/c.h).\n"),
        ("README.md", "Its last parts: `node/node.cc`; `daemon/node/{node,node_sessions}.cc`, `node/*.cc`.\n"),
        ("daemon/README.md", "From its own folder: `node/node.cc`, `../tests/run`.\n"),
        ("README.md", "Not of the tree: `/run/epd/epd.sock`, `out/x.json`, `a/<b>/c`, `x=y/z`, `0/1`.\n"),
        ("README.md", "```\ndaemon/node/   node.cc, node_sessions.cc: sessions\ntests/  run\n```\n"),
        ("README.md", "```python\nepd = Group()\n```\n\n```text\nepd ---> worker\n```\n"),
        ("README.md", "<!-- run by tests/unit/x_test.py -->\n\n```\ntests/run --cpp-only  # soon\n```\n"),
        ("README.md", "<!-- not run: needs two machines -->\n```sh\n$ epd --listen=a\n```\n"),
        (
            "README.md",
            "<!-- not run: slow -->\n```\nbazel test //daemon/... //daemon:epd //daemon\n```\n",
        ),
        ("daemon/x.md", "Not a README: `daemon/gone.cc`.\n"),
    ],
)  # fmt: skip
def test_what_is_true_passes(path: str, text: str) -> None:
    assert _check(text, path) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("See `daemon/gone.cc`.\n", "README.md:1: there is no daemon/gone.cc"),
        ("A [link](daemon/gone.md#x).\n", "README.md:1: there is no daemon/gone.md"),
        ("\nSee `gone.cc`.\n", "README.md:2: there is no gone.cc"),
        ("See `daemon/{node,gone}/`.\n", "README.md:1: there is no daemon/gone/"),
        ("See `daemon/*.gone`.\n", "README.md:1: there is no daemon/*.gone"),
        ("```\ndaemon/  all\ndaemon/gone/  x\n```\n", "README.md:3: there is no daemon/gone/"),
        ("```\ndaemon/  node.cc, gone.h\n```\n", "README.md:2: there is no gone.h"),
        (
            "```\ntests/run --cpp-only\n```\n",
            "README.md:2: say who runs 'tests/run --cpp-only': <!-- run by PATH --> or <!-- not run: why -->",
        ),
        (
            "<!-- not run: -->\n```sh\nepd\n```\n",
            "README.md:3: say who runs 'epd': <!-- run by PATH --> or <!-- not run: why -->",
        ),
        (
            "<!-- not run: slow -->\n```\nbazel test //daemon:gone\n```\n",
            "README.md:3: there is no target //daemon:gone",
        ),
        (
            "<!-- not run: slow -->\n```\nbazel test //gone/...\n```\n",
            "README.md:3: there is no target //gone/...",
        ),
        (
            "<!-- run by tests/gone.py -->\n```\ntests/run\n```\n",
            "README.md:3: tests/gone.py, which should run the commands, does not exist",
        ),
        (
            "<!-- run by tests/unit/x_test.py -->\n```\ntests/run --python-only\n```\n",
            "README.md:3: tests/unit/x_test.py should run this, but '--python-only' does not occur in it",
        ),
    ],
)
def test_what_is_false_is_refused(text: str, complaint: str) -> None:
    assert _check(text) == [complaint]


def test_a_false_path_planted_in_a_real_readme_is_found() -> None:
    files = tree.read()
    for readme in [path for path in files if path.rpartition("/")[2] == "README.md"]:
        before = readmes.check(files)
        planted = files | {readme: files[readme] + "\n\nSee `daemon/core/no_such_file.h`.\n"}
        (found,) = set(readmes.check(planted)) - set(before)
        assert found.startswith(f"{readme}:") and found.endswith("daemon/core/no_such_file.h")
