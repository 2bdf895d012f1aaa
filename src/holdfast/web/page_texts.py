"""What the pages say, in the reader's language. The words are in `texts/`, one file for each language."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from holdfast.i18n.formatting import LANGUAGES
from holdfast.web.api_types import Event, Problem


def _load(language: str) -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files(__package__).joinpath("texts", f"{language}.toml").read_text("utf-8"))


TEXTS: Final = {language: _load(language) for language in LANGUAGES}


def say(language: str, key: str, **values: object) -> str:
    texts = TEXTS[language]["page"]
    if key not in texts:
        key = f"{key}.one" if values["n"] == 1 else f"{key}.many"
    return texts[key].format(**values)


def of_scripts(language: str) -> Mapping[str, str]:
    return TEXTS[language]["script"]


def of_map(language: str) -> Mapping[str, str]:
    return TEXTS[language]["map"]


def of_stampede(language: str) -> Mapping[str, str]:
    return TEXTS[language]["stampede"]


def refusal(language: str, problem: Problem, event: Event, *, of_best: bool = False) -> str:
    """What a buyer reads instead of a code. `of_best`: they have asked for the best seats, without naming any."""
    most = event.policy.max_units_per_user
    key = f"refusal.{problem.code}"
    if of_best and f"{key}_best" in TEXTS[language]["page"]:
        key = f"{key}_best"
    # There are limits of other things than places too.
    if key not in TEXTS[language]["page"] or (key == "refusal.limit_reached" and most is None):
        key = "refusal.other"
    return say(language, key, conflicts=", ".join(problem.conflicts), most=most)
