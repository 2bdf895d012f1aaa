"""Every text of the bot is used, and every text that it uses exists."""

import re
from pathlib import Path

import holdfast.bot
from holdfast.i18n.texts import section

SOURCE = "\n".join(path.read_text() for path in sorted(Path(holdfast.bot.__file__).parent.glob("*.py")))
TEXTS = section("en", "bot")
# `say(language, f"status.{…}")` and the like. The rest of the key comes from a table that other tests cover.
PREFIXES = set(re.findall(r'f"([a-z_.]+)\.\{', SOURCE))
LITERALS = set(re.findall(r'"([a-z_.]+)"', SOURCE))


def test_every_text_is_used() -> None:
    sections = {"command", "staff_command"}
    used = {
        key
        for key in TEXTS
        if key in LITERALS or any(key.startswith(f"{prefix}.") for prefix in PREFIXES | sections | {"roster"})
    }
    assert set(TEXTS) - used == set()


def test_every_text_with_a_fixed_key_exists() -> None:
    calls = set(re.findall(r'(?:\btext|\blabel|\bsay)\((?:[\w.]+, )?\s*"([a-z_.]+)"', SOURCE))
    assert len(calls) > 50
    assert calls - set(TEXTS) == set()
