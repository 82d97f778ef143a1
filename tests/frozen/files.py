"""The result of one seed, and how it lies in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

DIGEST_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Frozen:
    """One result as text; ``words`` are the sentences in it that are for people."""

    name: str
    facts: str
    words: str = ""

    def write(self, directory: Path, kind: str) -> None:
        for text, place in ((self.facts, directory / kind), (self.words, directory / f"{kind}-words")):
            if text:
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{self.name}.txt").write_text(text)


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:DIGEST_CHARACTERS]
