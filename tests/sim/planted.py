"""Plants bugs, one after the other, in the simulator of both planes, and prints which invariant found each, in which scenario.

They stand round the product, not in it: tests/unit/daemon/worker/world/sabotage.h and Bug of tests/sim/options.h.
Usage: tests/sim/planted.py [SIM], after bazel build //tests/sim:sim. Exit status 0 only if every one is found.
"""

import re
import subprocess
import sys
from pathlib import Path

MAX_SCENARIOS = 100
DEADLINE_S = 120

# Name, switch, number.
PLANTED = [
    ("an answer never arrives", "sabotage", 1),
    ("an answer arrives twice", "sabotage", 2),
    ("a good outcome is told as an error", "sabotage", 3),
    ("a rank hears another cause", "sabotage", 4),
    ("an outcome is written twice", "sabotage", 5),
    ("answers overtake the record", "sabotage", 6),
    ("a record is never given back", "sabotage", 8),
    ("arenas of an ended group stay", "sabotage", 9),
    ("a tenant is given another one's arenas", "sabotage", 10),
    ("rows land after their operation", "sabotage", 17),
    ("a call is said to be the next one", "sabotage", 26),
    ("a stream loses a message and goes on", "sabotage", 27),
    ("a worker hears another decision", "sabotage", 30),
    ("rows are said to have landed", "sabotage", 31),
    ("nodes are told of different holders", "bug", 1),
    ("nobody says that a client has died", "bug", 3),
    ("a rank is granted twice", "bug", 7),
    ("a node gets another unique id", "bug", 9),
    ("an old view is taken for new", "bug", 10),
    ("what followed hides the cause", "bug", 20),
    ("who has left is said to hold staging", "bug", 23),
]


def find(sim: str, switch: str, number: int) -> tuple[int, str] | None:
    command = [sim, "--whole", f"--seeds={MAX_SCENARIOS}", "--events=60", f"--{switch}={number}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    found = re.search(r"^seed (\d+): ([^:]+):", done.stdout, re.MULTILINE)
    return (int(found[1]), found[2]) if found else None


def main() -> int:
    sim = sys.argv[1] if len(sys.argv) > 1 else "bazel-bin/tests/sim/sim"
    if not Path(sim).exists():
        print(f"{sim}: not there; run bazel build //tests/sim:sim first", file=sys.stderr)
        return 2
    num_missed = 0
    print("| planted bug | scenarios until found | invariant |\n|---|--:|---|")
    for name, switch, number in PLANTED:
        found = find(sim, switch, number)
        num_missed += found is None
        print(
            f"| {name} | {found[0]} | {found[1]} |"
            if found
            else f"| {name} | not in {MAX_SCENARIOS} | |"
        )
    print(f"{len(PLANTED) - num_missed} of {len(PLANTED)} found")
    return 0 if num_missed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
