"""Commands from the documentation, so that tests run exactly what operators read."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def read_example(page: str, start: str) -> str:
    """The only code block of the page whose first line starts like this."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    found: list[str] = [block for block in blocks if block.startswith(start)]
    assert len(found) == 1, f"docs/{page} has {len(found)} examples that start with {start!r}"
    return found[0]
