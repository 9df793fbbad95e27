"""One word, one meaning: names that once stood for several things do not come back into the product's code, and the glossary
stays short enough to be read.
"""

import re

import tree

_GLOSSARY = "daemon/README.md"
_MOST_WORDS = 25
# Of proto/ the own part: those of others have their words.
_CODE = ("client/", "daemon/", "proto/epd/", "kernels/cuda/")
_SUFFIXES = (*tree.CPP_SUFFIXES, ".py", ".proto", "BUILD")
# What is retired, and what to say instead.
_RETIRED = [
    (
        re.compile(r"(?<![A-Za-z])lanes?(?![a-z])|Lanes?(?![a-z])"),
        "eager buffer, stream region, peer stream or thread position",
    ),
    # std::span and absl::Span<> are other things.
    (re.compile(r"\bSpan[A-Z]\w*|\bspan_\w+"), "leader protocol, peer message or remote ranks"),
    (re.compile(r"(?<![a-z])errands?(?![a-z])|Errand"), "task thread"),
    (re.compile(r"(?<![a-z])seats?(?![a-z])|Seat(?![a-z])"), "worker entry"),
    (re.compile(r"[a-z]_book\b|[a-z]Book\b"), "history, table or deduplicator"),
    (re.compile(r"(?<![a-z])attendance(?![a-z])|Attendance"), "role handshake"),
]
_WORD = re.compile(r"(?<!\*)\*([\w\n -]+)\*(?!\*)")


def check(files: tree.Tree) -> list[str]:
    complaints = [
        f"{path}:{number}: '{found[0]}' is retired; say {instead}"
        for path, text in files.items()
        if path.startswith(_CODE) and path.endswith(_SUFFIXES)
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern, instead in _RETIRED
        if (found := pattern.search(line))
    ]
    glossary = files.get(_GLOSSARY, "").partition("## Glossary\n")[2]
    words = _WORD.findall(glossary)
    if not 0 < len(words) <= _MOST_WORDS:
        complaints.append(
            f"{_GLOSSARY}: the glossary has {len(words)} words, expected 1 to {_MOST_WORDS}"
        )
    return complaints


if __name__ == "__main__":
    tree.run(check)
