"""Where the kill matrix kills and stops, and what else goes wrong in it."""

import dataclasses

SMALL, LARGE = 16, 16384  # Elements of a row: in eager buffers, in a region.


@dataclasses.dataclass(frozen=True)
class Case:
    point: str
    victim: str  # "client" (rank 1), "worker" (that leads), "far worker", "epd", "coordinator".
    when: str  # See WHEN.
    action: str = "kill"  # A failpoint's; of "stop" `hold` seconds.
    hidden: int = SMALL
    hold: float = 0.0
    one_node: bool = False  # All ranks are on the first one.

    def __str__(self) -> str:
        hold = f" {self.hold:g} s" if self.action == "stop" else ""
        return f"{self.point} {self.victim}{' one node' * self.one_node} {self.action}{hold}"


WHEN = {
    "form": "while the group forms",
    "step": "in the second step",
    "late peer": "in the second step, while another rank is late",
    "lost rank": "after another rank was killed",
    "lost worker": "after the victim's worker was killed",
    "lost peer": "after the worker that leads was killed",
    "leave": "while the ranks leave",
}

_CLIENT = {
    "form": (
        *("client.attach.connected", "client.attach.said", "client.attach.answered"),
        *("client.join.sent", "client.joined.received", "client.joined.mapped"),
    ),
    "step": (
        *("client.announce.begin", "client.slot.arm", "client.slot.armed"),
        *("client.announce.answered", "client.pull.begin", "client.pull.done"),
        *("client.pulled.said",),
    ),
    "step large": ("client.stage.begin", "client.stage.done", "client.publish.answered"),
    "lost rank": ("client.reform.received",),
}
_WORKER = {
    "form": (
        *("worker.session.add", "worker.session.added", "worker.tenant.start"),
        *("worker.communicator.init", "worker.tenant.ready"),
    ),
    "step": (
        *("worker.slot.claim", "worker.slot.claimed", "worker.slot.answer", "worker.slot.answered"),
        *("worker.record.open", "worker.record.decide", "worker.record.decided"),
        *("worker.record.close", "worker.snapshot", "worker.control.received"),
    ),
    "form large": ("worker.pages.commit",),
    "lost rank": ("worker.tenant.end",),
}
_FAR_WORKER = {
    "form": ("worker.tenant.start",),
    "lost peer": ("worker.wire.prove", "worker.wire.greeted"),
    "step": ("worker.slot.claimed", "worker.record.decided"),
    "step large": ("worker.wire.open", "worker.wire.close"),  # Small rows go ahead of it.
}
_EPD = {
    "form": (
        *("epd.attach.arrived", "epd.session.message", "epd.join.asked", "epd.tenant.start"),
        *("epd.tenant.ready", "epd.joined.send", "epd.joined.sent"),
    ),
    "lost rank": ("epd.drained.received",),
    "lost worker": ("epd.worker.reap", "epd.worker.dead", "epd.worker.started", "epd.worker.ready"),
    "leave": ("epd.session.detach", "epd.session.end"),
}
_OF_EPD = {"step": ("epd.view.received",)}
_OF_COORDINATOR = {"step": ("epd.reports.received",)}

# Of small rows on one node, whose ranks publish for themselves.
_ONE_NODE = (
    ("client", "step", ("client.stage.eager", "client.direct.published")),
    ("client", "step", ("client.direct.met", "client.direct.read")),
    ("client", "late peer", ("client.direct.handed_over",)),
    ("worker", "step", ("worker.snapshot", "worker.control.received")),
    ("coordinator", "step", ("epd.reports.received",)),
)

# Calls that fail, messages that are lost, doubled or turned over, clocks that jump.
_FAULTS = (
    *(("client.attach.no_descriptor", "client", "form", "error", SMALL),),
    *(("client.socket.send", "client", "form", "error", SMALL),),
    *(("client.socket.receive", "client", "form", "error", SMALL),),
    *(("client.socket.bytes", "client", "form", "flip", SMALL),),
    *(("client.map.no_memory", "client", "form", "error", SMALL),),
    *(("client.join.send", "client", "form", "drop", SMALL),),
    *(("client.join.send", "client", "form", "duplicate", SMALL),),
    *(("client.drained.send", "client", "lost rank", "duplicate", SMALL),),
    *(("client.announce.answered", "client", "step", "delay:500ms", SMALL),),
    *(("worker.session.no_memory", "worker", "form", "error", SMALL),),
    *(("worker.control.no_descriptor", "worker", "form", "error", SMALL),),
    *(("worker.control.bytes", "worker", "step", "flip", SMALL),),
    *(("worker.arena.no_memory", "worker", "form", "error", SMALL),),
    *(("worker.arena.no_descriptor", "worker", "form", "error", SMALL),),
    *(("worker.arena.no_space", "worker", "form", "error", LARGE),),
    *(("worker.arena.lost_pages", "worker", "form", "error", LARGE),),
    *(("worker.clock", "worker", "step", "jump:3s", SMALL),),
    *(("worker.clock", "worker", "step", "jump:-3s", SMALL),),
    *(("worker.wire.version_gap", "far worker", "lost peer", "error", SMALL),),
    *(("worker.wire.message", "far worker", "step", "drop", SMALL),),
    *(("worker.wire.rows", "far worker", "step", "drop", LARGE),),
    *(("worker.wire.bytes", "far worker", "step", "flip", SMALL),),
    *(("worker.wire.header", "far worker", "step", "flip", LARGE),),
    *(("epd.attach.no_descriptor", "epd", "form", "error", SMALL),),
    *(("epd.attach.version_gap", "epd", "form", "error", SMALL),),
    *(("epd.segment.no_memory", "epd", "form", "error", SMALL),),
    *(("epd.segment.no_space", "epd", "form", "error", SMALL),),
    *(("epd.joined.stale_epoch", "epd", "form", "error", SMALL),),
    *(("epd.report.send", "epd", "form", "drop", SMALL),),
    *(("epd.report.send", "epd", "form", "duplicate", SMALL),),
    *(("epd.view.send", "coordinator", "form", "drop", SMALL),),
    *(("epd.view.send", "coordinator", "form", "duplicate", SMALL),),
    *(("epd.view.half_open", "coordinator", "step", "error", SMALL),),
    *(("epd.link.half_open", "epd", "step", "error", SMALL),),
    *(("epd.reform.send", "epd", "lost rank", "duplicate", SMALL),),
    *(("epd.worker.no_descriptor", "epd", "lost worker", "error", SMALL),),
    *(("epd.clock", "epd", "step", "jump:2s", SMALL),),
)


def places() -> list[Case]:
    """Each point with each of its victims."""
    found = []
    for victim, points in (
        ("client", _CLIENT),
        ("worker", _WORKER),
        ("far worker", _FAR_WORKER),
        ("epd", {**_EPD, **_OF_EPD}),
        ("coordinator", {**_EPD, **_OF_COORDINATOR}),
    ):
        for when, names in points.items():
            hidden = LARGE if when.endswith(" large") else SMALL
            found += [
                Case(name, victim, when.removesuffix(" large"), hidden=hidden) for name in names
            ]
    for victim, when, names in _ONE_NODE:
        found += [Case(name, victim, when, one_node=True) for name in names]
    return found


def faults() -> list[Case]:
    return [
        Case(point, victim, when, action=action, hidden=hidden)
        for point, victim, when, action, hidden in _FAULTS
    ]
