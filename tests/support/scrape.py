"""What a process says over HTTP, for tests: a GET, and the text format of Prometheus read strictly."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import NamedTuple

LINE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (NaN|[+-]Inf|-?[0-9.e+-]+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')


class Sample(NamedTuple):
    """One line."""

    name: str
    labels: dict[str, str]
    value: float


class Scraped(NamedTuple):
    """One answer of /metrics."""

    kinds: dict[str, str]
    """Kind by the name of the family."""
    samples: list[Sample]

    def family(self, name: str) -> list[Sample]:
        """Return the samples of a metric; of a histogram, its counts."""
        wanted = f"{name}_count" if self.kinds.get(name) == "histogram" else name
        return [sample for sample in self.samples if sample.name == wanted]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        return sum(sample.value for sample in self.family(name) if labels.items() <= sample.labels.items())


def get(url: str) -> tuple[int, str]:
    """Return status and body; (0, "") if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
    except OSError:
        return 0, ""


def parse(text: str) -> Scraped:
    """Return what `text` says. Fails on a line that the format does not have, or one without its TYPE before it."""
    scraped = Scraped({}, [])
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in scraped.kinds, f"{name} comes twice"
            scraped.kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = LINE.fullmatch(line)
            assert found, line
            family = re.sub(r"_(bucket|sum|count)$", "", found[1])
            assert found[1] in scraped.kinds or scraped.kinds.get(family) == "histogram", f"no TYPE before {line}"
            scraped.samples.append(Sample(found[1], dict(LABEL.findall(found[2] or "")), float(found[3])))
    return scraped
