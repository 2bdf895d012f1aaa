"""Statements take their lists of statuses from the state table, and the lists match the partial indexes."""

import re
from importlib import resources

import pytest

from holdfast import sql
from holdfast.core.states import Status

FOLDER = resources.files("holdfast.sql")
FILES = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".sql"))
SCHEMA = FOLDER.joinpath("migrations/0001_engine.sql").read_text()
STATUS = "|".join(Status)


@pytest.mark.parametrize(("index", "included"), [("booking_due", "timed"), ("booking_live_of_user", "live")])
def test_a_list_equals_the_predicate_of_its_index(index: str, included: str) -> None:
    predicate = re.search(rf"CREATE INDEX {index} ON .* WHERE status IN \((.*)\);", SCHEMA)
    assert predicate is not None
    statements = sql.parse_statements(f"-- name: it\nSELECT {{{{{included}}}}}\n")
    assert statements == {"it": f"SELECT {predicate.group(1)}"}


@pytest.mark.parametrize("file", FILES)
def test_no_statement_spells_out_a_list_of_booking_statuses(file: str) -> None:
    spelled = re.findall(rf"booking\.status (?:NOT )?IN \('(?:{STATUS})'.*", FOLDER.joinpath(file).read_text())
    assert spelled == []


@pytest.mark.parametrize("file", FILES)
def test_every_include_is_expanded(file: str) -> None:
    statements = sql.parse_statements(FOLDER.joinpath(file).read_text())
    assert statements
    assert not [name for name, found in statements.items() if "{{" in (found if isinstance(found, str) else found.text)]


def test_an_unknown_include_is_an_error() -> None:
    with pytest.raises(KeyError, match="tmied"):
        sql.parse_statements("-- name: it\nSELECT {{tmied}}\n")
