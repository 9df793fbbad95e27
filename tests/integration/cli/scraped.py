"""What an epd serves over HTTP, from Python."""

import json
import re
import urllib.error
import urllib.request

import running_epd

_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def base(epd: running_epd.RunningEpd) -> str:
    """http://host:port of an epd with --metrics_listen."""
    found = re.search(r"\bmetrics=(\S+)", epd.log())
    assert found, epd.log()
    return f"http://{found[1]}"


def get(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, dict(refusal.headers), refusal.read().decode()


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Values of the label sets of a metric."""
    found = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match and match["name"] == name:
            labels = tuple(value for _, value in _LABEL.findall(match["labels"] or ""))
            found[labels] = float(match["value"])
    return found


def metric(epd: running_epd.RunningEpd, name: str) -> dict[tuple[str, ...], float]:
    status, _, text = get(f"{base(epd)}/metrics")
    assert status == 200, text
    return samples(text, name)


def figures(epd: running_epd.RunningEpd) -> dict:
    return json.loads(get(f"{base(epd)}/figures.json")[2])
