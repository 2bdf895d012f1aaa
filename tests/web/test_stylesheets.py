"""Browsers silently skip rules that they cannot parse, so a test has to check the stylesheets."""

import re
from itertools import accumulate
from pathlib import Path

import pytest

import holdfast.web

STYLESHEETS = sorted((Path(holdfast.web.__file__).parent / "static").glob("*.css"))


@pytest.mark.parametrize("stylesheet", STYLESHEETS, ids=lambda path: path.name)
def test_the_braces_of_a_stylesheet_match(stylesheet: Path) -> None:
    rules = re.sub(r'/\*.*?\*/|"[^"]*"', "", stylesheet.read_text(), flags=re.DOTALL)
    depths = list(accumulate(1 if brace == "{" else -1 for brace in re.findall(r"[{}]", rules)))
    assert min(depths) == 0
    assert depths[-1] == 0
