"""ARCHITECTURE.md shows the current source tree."""

import re
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "ARCHITECTURE.md"


def modules_in_tree() -> dict[str, set[str]]:
    packages: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parent.as_posix()
        if package != ".":
            packages.setdefault(package, set())
            if path.stem != "__init__":
                packages[package].add(path.stem)
    return packages


def modules_in_document() -> dict[str, set[str]]:
    """The source tree: a line for each package, `  package/   words`, and for each module, `    module   words`."""
    tree = DOCUMENT.read_text().split("## Source tree")[1].split("```")[1]
    packages: dict[str, set[str]] = {}
    for package, module, words in re.findall(r"^  (?:([a-z0-9_/]+)/|  ([a-z0-9_]+)) +(\S.*)$", tree, re.MULTILINE):
        assert words
        if package:
            modules = packages.setdefault(package, set())
        else:
            modules.add(module)
    return packages


def test_the_source_tree_lists_every_package_and_module() -> None:
    assert modules_in_document() == modules_in_tree()


def test_every_file_named_in_the_text_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", DOCUMENT.read_text()))
    assert len(named) > 10
    assert {name for name in named if not (SOURCE / name).exists()} == set()
