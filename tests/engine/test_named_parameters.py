"""Statements with named parameters: each name becomes a number, and a call must pass a value for each."""

import re
from types import SimpleNamespace

import pytest

from holdfast import sql
from holdfast.sql import NamedStatement, parse_statements


def test_each_name_gets_one_number_in_the_order_of_first_use() -> None:
    statement = NamedStatement("SELECT :b, :a WHERE x = :b AND y = :a_2")
    assert statement.text == "SELECT $1, $2 WHERE x = $1 AND y = $3"
    assert statement(a=1, b=2, a_2=3) == (statement.text, 2, 1, 3)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT $1::text",
        "SELECT x::uuid[], y :: integer",
        "SELECT ':name', 'it''s :name'",
        "SELECT 1 -- with :name",
        "SELECT parts[1:2]",
    ],
)
def test_casts_strings_comments_and_slices_are_not_parameters(text: str) -> None:
    assert parse_statements(f"-- name: it\n{text}\n") == {"it": text}


def test_a_cast_may_follow_a_parameter() -> None:
    assert NamedStatement("SELECT unnest(:ids::uuid[])").text == "SELECT unnest($1::uuid[])"


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3}])
def test_a_missing_or_unknown_value_is_an_error(values: dict[str, int]) -> None:
    wrong = {"a", "b"} ^ values.keys()
    with pytest.raises(TypeError, match=rf"{min(wrong)}"):
        NamedStatement("SELECT :a, :b")(**values)


def test_named_and_numbered_parameters_do_not_mix() -> None:
    with pytest.raises(ValueError, match="mix"):
        NamedStatement("SELECT :a, $1")


def test_statements_with_more_than_four_parameters_name_them() -> None:
    files = {name: statements for name, statements in vars(sql).items() if isinstance(statements, SimpleNamespace)}
    assert len(files) > 10
    numbered = {
        f"{file}.{name}": text
        for file, statements in files.items()
        for name, text in vars(statements).items()
        if isinstance(text, str)
    }
    assert "events.lock" in numbered
    assert [name for name, text in numbered.items() if re.search(r"\$(?:[5-9]|\d\d)", text)] == []
