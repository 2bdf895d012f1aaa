"""Rows are decoded into structs: a JSON column gets the type of its field, and a wrong column is an error."""

from datetime import datetime

import msgspec
import pytest
from msgspec import Struct

from holdfast.runtime import db
from tests.support.engine_harness import async_test, lane_connection


class Part(Struct, frozen=True):
    hash: bytes
    at: datetime | None = None


class DecodedRow(Struct, frozen=True):
    part: Part | None
    parts: list[Part]
    names: list[str]
    text: str


ROW = """
SELECT '{"hash": "AAE="}'::json AS part, '[{"hash": "", "at": "2027-03-05T19:00:00Z"}]'::json AS parts,
       ARRAY['a', 'b'] AS names, '{"hash": ""}' AS text
"""


async def read(database: str, statement: str) -> DecodedRow | None:
    async with lane_connection(database) as connection:
        return await db.Database(connection).shared.row(DecodedRow, statement)


@async_test
async def test_a_json_column_is_decoded_and_a_text_is_not(database: str) -> None:
    row = await read(database, ROW)
    assert row is not None
    assert row.part == Part(b"\0\1")
    assert [part.at for part in row.parts] == [datetime.fromisoformat("2027-03-05T19:00:00Z")]
    assert (row.names, row.text) == (["a", "b"], '{"hash": ""}')


@async_test
async def test_a_column_may_be_null_if_its_field_may_be_none(database: str) -> None:
    row = await read(database, ROW.replace("""'{"hash": "AAE="}'::json""", "NULL::json"))
    assert row is not None
    assert row.part is None


@pytest.mark.parametrize("wrong", ["""'{"hash": 1}'::json""", "1", "'not JSON'"])
@async_test
async def test_a_column_of_another_type_is_an_error(database: str, wrong: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        await read(database, ROW.replace("""'{"hash": "AAE="}'::json""", wrong))


@async_test
async def test_a_missing_column_is_an_error(database: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="text"):
        await read(database, ROW.replace("AS text", "AS other"))


@async_test
async def test_a_statement_does_not_wait_for_a_connection_for_ever(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "_ACQUIRE_SECONDS", 0.05)
    pool = await db.create_pool(database, 1)
    async with pool.acquire():
        with pytest.raises(db.LOST_ERRORS):
            await db.Database(pool).shared.fetchval("SELECT 1")
    assert await db.Database(pool).shared.fetchval("SELECT 1") == 1
    await db.close_pool(pool)
