"""Databases as earlier steps of the schema left them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from holdfast import sql
from tests.support.harness import query, with_database


@contextmanager
def database_at_step(postgres: str, last: int) -> Iterator[str]:
    name = f"old_schema_{last}"
    query(postgres, f"CREATE DATABASE {name}")
    url = with_database(postgres, name)
    run_steps(url, 1, last)
    yield url
    query(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def run_steps(url: str, first: int, last: int) -> None:
    """Run these steps in one transaction, as a migration does."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (number integer PRIMARY KEY)")
            for number, step in sql.migrations():
                if first <= number <= last:
                    await connection.execute(step)
                    await connection.execute("INSERT INTO schema_version VALUES ($1)", number)
        await connection.close()

    asyncio.run(run())
