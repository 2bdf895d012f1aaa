"""The log names people by keyed hashes."""

import asyncio
from typing import cast

import asyncpg
import pytest

from holdfast.runtime import pseudonyms
from holdfast.runtime.db import Database
from holdfast.runtime.pseudonyms import PseudonymKey, Pseudonyms
from tests.support.engine_harness import async_test

ORG, OTHER_ORG = bytes(16), bytes([1]) * 16


@pytest.mark.parametrize("actor", ["system", "completer", "key:hf_sk_1a2b3c", "provider:stripe"])
def test_actors_that_are_no_people_keep_their_names(actor: str) -> None:
    names = Pseudonyms()
    assert names.find(ORG, actor) == actor
    names.set_key(b"secret")
    assert names.find(ORG, actor) == actor


@pytest.mark.parametrize("actor", ["user:ana@example.org", "telegram:123456", "something-new:ana", "user:a:b"])
def test_people_have_a_hash(actor: str) -> None:
    names = Pseudonyms()
    names.set_key(b"secret")
    found = names.find(ORG, actor)
    kind, _, name = actor.partition(":")
    assert found.startswith(f"{kind}:")
    assert name not in found
    assert names.find(ORG, actor) == found


def test_people_have_no_hash_until_the_key_is_known() -> None:
    names = Pseudonyms()
    assert names.find(ORG, "user:ana") == "user"
    names.set_key(b"secret")
    assert names.find(ORG, "user:ana") != "user"


def test_hashes_depend_on_the_person_the_org_and_the_key() -> None:
    names, others = Pseudonyms(), Pseudonyms()
    names.set_key(b"secret")
    others.set_key(b"another")
    found = {
        names.find(ORG, "user:ana"),
        names.find(ORG, "user:bob"),
        names.find(OTHER_ORG, "user:ana"),
        others.find(ORG, "user:ana"),
    }
    assert len(found) == 4


def test_a_new_key_changes_the_hashes() -> None:
    names = Pseudonyms()
    names.set_key(b"secret")
    before = names.find(ORG, "user:ana")
    names.set_key(b"rotated")
    assert names.find(ORG, "user:ana") != before


class FailingDatabase:
    """Fails in a way that no other code expects, as often as it is asked."""

    def __init__(self) -> None:
        self.questions = 0
        self.asked_thrice = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        self.questions += 1
        if self.questions >= 3:
            self.asked_thrice.set()
        raise asyncpg.OutOfMemoryError(name)


@async_test
async def test_a_failure_to_read_the_key_does_not_end_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudonyms, "REFRESH_SECONDS", 0.001)
    database = FailingDatabase()
    key = PseudonymKey(cast(Database, database))
    await key.start()
    await asyncio.wait_for(database.asked_thrice.wait(), 30)
    await key.close()
