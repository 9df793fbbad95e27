"""The top level holds what the README's map shows, dotfiles that tools need, and nothing else."""

import tree

_REQUIRED = {
    *("WORKSPACE", "BUILD", "README.md"),
    *("proto", "daemon", "client", "kernels", "tests", "deploy", "bazel"),
}
_DOTFILES = {
    *(
        ".bazelignore",
        ".bazelrc",
        ".ci",
        ".clang-format",
        ".clang-tidy",
        ".gitignore",
        ".ruff.toml",
    ),
}


def check(files: tree.Tree) -> list[str]:
    present = {path.split("/", 1)[0] for path in files}
    extra = sorted(present - _REQUIRED - _DOTFILES)
    missing = sorted(_REQUIRED - present)
    return [f"{name}: does not belong at the top level" for name in extra] + [
        f"{name}: is missing at the top level" for name in missing
    ]


if __name__ == "__main__":
    tree.run(check)
