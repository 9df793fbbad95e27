"""The guarantees of elections (daemon/store/election.h), checked over what several epds have logged."""

import dataclasses
import datetime

_LEASE = datetime.timedelta(seconds=3)  # The setting's default.


@dataclasses.dataclass
class Reign:
    node: str
    begin: datetime.datetime
    revision: int
    floor: int
    ceiling: int
    end: datetime.datetime | None = None  # None: it leads, or died without a word.


def reigns(logs: dict[str, str]) -> list[Reign]:
    """Of all nodes, by begin."""
    found = []
    for node, log in logs.items():
        reign = None
        for line in log.splitlines():
            time = line.split(" ", 1)[0]
            if 'event="leading"' in line or "event=leading" in line:
                fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
                reign = Reign(
                    node,
                    datetime.datetime.fromisoformat(time),
                    int(fields["revision"]),
                    int(fields["epochs_above"]),
                    int(fields["epochs_up_to"]),
                )
                found.append(reign)
            elif "stepped down" in line and reign is not None:
                reign.end = datetime.datetime.fromisoformat(time)
    return sorted(found, key=lambda one: one.begin)


def check(
    history: list[Reign], dead: dict[str, datetime.datetime], lost_data: bool = False
) -> None:
    """`dead`: when a node was killed or stopped; its reign had ended then. `lost_data`: etcd forgot the lease, too, so two may
    lead until the older's lease is over; their epochs are apart all the same."""
    overlap = _LEASE if lost_data else datetime.timedelta(0)
    for earlier, later in zip(history, history[1:], strict=False):
        assert later.floor >= earlier.ceiling, f"growing: {earlier} {later}"
        if not lost_data:
            assert later.revision > earlier.revision, f"agreement: {earlier} {later}"
        end = earlier.end or dead.get(earlier.node)
        assert end is not None and (end <= later.begin + overlap or earlier.node in dead), (
            f"no_overlap: {earlier} {later}"
        )
