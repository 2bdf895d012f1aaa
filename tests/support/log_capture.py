"""Capture the log of a server, and look for secrets in it."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Secrets that a test may have forgotten to name.
PATTERNS = {
    "an email address": re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+"),
    "a secret key": re.compile(r"hf_sk_[\w-]{10}"),
    "a signing secret": re.compile(r"whsec_\w"),
    "a customer token": re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+"),
    "a phone number": re.compile(r"\+[1-9]\d{6,14}\b"),
    "a card number": re.compile(r"\b(?:\d[ -]?){12,18}\d\b"),
}

# The numbers of push messages and reminders are as long as those of cards.
DELIVERY_NUMBER = re.compile(r'"number":1099511\d{6}\b')


class CapturedLog:
    """The log of a server, and the secrets that must not be in it, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secrets: dict[str, str] = {}

    @property
    def text(self) -> str:
        return self.path.read_text(errors="replace")

    def has_entry(self, event: str) -> bool:
        """Whether the log has an entry of this name."""
        return f'"event":"{event}"' in self.text


def find_leaks(text: str, named: dict[str, str]) -> list[str]:
    """The secrets in the log, without repeating the line that leaks."""
    found = []
    for line in text.splitlines():
        event = json.loads(line).get("event") if line.startswith("{") else line[:20]
        lowered = line.lower()
        found += [f"{name} in {event}" for name, secret in named.items() if secret.lower() in lowered]
        rest = DELIVERY_NUMBER.sub("", line)
        found += [f"{name} in {event}" for name, pattern in PATTERNS.items() if pattern.search(rest)]
    return found


@contextmanager
def redirect_output(path: Path) -> Iterator[None]:
    """Redirect the output of every process that starts meanwhile to this file."""
    kept = os.dup(1), os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for number, original in enumerate(kept, 1):
            os.dup2(original, number)
            os.close(original)
