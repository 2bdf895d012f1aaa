"""The people who talk to an org's bot."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast import sql
from holdfast.core.actors import STAFF_ACTOR
from holdfast.core.states import Status
from holdfast.runtime.db import Database, DatabaseScope


class Person(Struct, frozen=True):
    """A registered person has agreed to give a name and a phone number. Staff have blocked a blocked person. An
    unreachable person has blocked the bot."""

    person_id: int
    name: str
    phone: str | None
    language: str
    is_registered: bool = False
    is_blocked: bool = False
    is_unreachable: bool = False


async def load_person(database: Database, org: bytes, person: int) -> Person | None:
    return await database.org(org).row(Person, sql.telegram.person, org, person)


async def load_people(database: Database, org: bytes, people: Iterable[int | None]) -> dict[int, Person]:
    known = [person for person in people if person is not None]
    rows = await database.org(org).rows(Person, sql.telegram.people, org, known)
    return {person.person_id: person for person in rows}


async def find_decider(database: Database, event: bytes, booking: bytes, status: Status) -> Person | None:
    """The member of staff who gave the booking this status, if that was in Telegram."""
    return await database.event(event).row(
        Person, *sql.telegram.decision(event=event, booking=booking, kind=status, staff=STAFF_ACTOR)
    )


async def save_person(scope: DatabaseScope, org: bytes, person: Person) -> None:
    await scope.execute(
        *sql.telegram.save_person(
            org=org,
            person=person.person_id,
            name=person.name,
            phone=person.phone,
            language=person.language,
            is_registered=person.is_registered,
        )
    )
