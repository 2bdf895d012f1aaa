"""Compares what Redis holds with PostgreSQL, for `holdfast gate check`."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, TypeVar

from msgspec import DecodeError, Struct, ValidationError, json

from holdfast import sql
from holdfast.core.journal import SEAT_STATE_BY_STATUS
from holdfast.core.states import CLAIMING, TIMED
from holdfast.gate.changes import BookedSeats
from holdfast.gate.circuit_breaker import CircuitBreaker
from holdfast.gate.entries import EventKeys, SeatEntry, client_id, format_time, request_id, user_id
from holdfast.gate.event_builder import LEASE_SECONDS, EventBuilder
from holdfast.gate.event_mark import Mark, read_marks
from holdfast.gate.follower import EventChanges
from holdfast.gate.redis_client import Client, RedisCalls, RedisUrl, UnavailableError, open_client
from holdfast.gate.user_hash import UserHasher, hash_user
from holdfast.runtime import ids
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import SecretValue

T = TypeVar("T")

BUDGET_SECONDS: Final = 10.0
# Sales go on during the check. A difference that lasts this long is not just a message in flight.
RECHECK_SECONDS: Final = 2.0
KEYS_AT_ONCE: Final = 500
REPAIR_SECONDS: Final = 2 * LEASE_SECONDS

# In this order: Redis shows a free seat as taken; it has the wrong owner, state or deadline; it lacks a taken seat; it
# lacks a buyer who has a booking; it miscounts a pool. docs/redis.md says what each means for buyers.
Kind = Literal["free_in_database", "different", "missing", "unknown_buyer", "wrong_count"]


class Difference(Struct, frozen=True, kw_only=True):
    event: str
    kind: Kind
    seat: str | None = None
    pool: str | None = None
    booking: str | None = None
    booking_in_redis: str | None = None


class GateReport(Struct, frozen=True, kw_only=True):
    """`events` and `seats` count what Redis holds. `asleep` lists the events in which it currently refuses nobody,
    for example because no buyer has asked for them. `repaired`: every event that differed has been rebuilt."""

    ok: bool
    events: int
    asleep: list[str]
    seats: int
    differences: list[Difference]
    repaired: bool


class Comparison:
    def __init__(self, url: RedisUrl, database: Database) -> None:
        self._client: Client = open_client(url)
        self._calls = RedisCalls(self._client, CircuitBreaker(), BUDGET_SECONDS)
        self._database = database
        self._hasher = UserHasher(database)
        self._builder = EventBuilder(self._calls, database, self._hasher, DatabaseClock())

    async def run(self, *, repair: bool) -> GateReport:
        """Compare twice, and keep only the differences found both times. To repair an event, rebuild it."""
        secret = await self._hasher.secret()
        first = await self._compare_all(await self._find_keys(), secret)
        lasting = first
        if first.differences:
            await asyncio.sleep(RECHECK_SECONDS)
            lasting = first.keep_lasting(await self._compare_all(await self._find_keys(), secret))
        is_repaired = repair and bool(lasting.differences) and await self._build_all(lasting.events_that_differ)
        return GateReport(
            ok=not lasting.differences or is_repaired,
            events=first.events,
            asleep=sorted(first.asleep),
            seats=first.seats,
            differences=sorted(
                lasting.differences, key=lambda each: (each.event, each.kind, each.seat or each.pool or "")
            ),
            repaired=is_repaired,
        )

    async def _build_all(self, events: Iterable[bytes]) -> bool:
        """Returns whether all events are rebuilt. Retries, because the lease of a builder that died expires soon."""
        left = list(events)
        give_up_at = time.monotonic() + REPAIR_SECONDS
        while True:
            left = [event for event in left if not await self._builder.build(event)]
            if not left or time.monotonic() > give_up_at:
                return not left
            await asyncio.sleep(1)

    async def close(self) -> None:
        await self._client.aclose()

    async def _find_keys(self) -> "dict[bytes, _EventInRedis]":
        """What Redis has keys for, by event."""
        found: dict[bytes, _EventInRedis] = {}
        try:
            async for key in self._client.scan_iter(match="org:*:event:{*}:*", count=1_000):
                _, org_text, _, event_text, kind, *label = key.decode().split(":", 5)
                org, event = ids.parse_org_id(org_text), ids.parse_event_id(event_text.strip("{}"))
                if org is not None and event is not None:
                    in_redis = found.setdefault(event, _EventInRedis(org, set()))
                    in_redis.labels.update(label if kind == "seat" else ())
        except Exception as error:
            raise UnavailableError(type(error).__name__) from error
        return found

    async def _compare_all(self, found: "Mapping[bytes, _EventInRedis]", secret: SecretValue) -> "_Findings":
        findings = _Findings()
        orgs = {event: in_redis.org for event, in_redis in found.items()}
        for event, mark in (await read_marks(self._calls, orgs) if orgs else {}).items():
            head = await self._builder.find_head(event)
            if head is None:
                # Another database uses the same Redis.
                continue
            findings.events += 1
            if mark is None or not mark.is_current(head.at) or mark.needs_build(secret, None):
                findings.asleep.append(ids.format_event_id(event))
            # After a rotation, all hashes differ until the event is rebuilt.
            if mark is not None and mark.secret == str(secret.number):
                await self._compare(findings, event, found[event], mark, secret)
        return findings

    async def _compare(
        self, findings: "_Findings", event: bytes, in_redis: "_EventInRedis", mark: Mark, secret: SecretValue
    ) -> None:
        org, keys = in_redis.org, EventKeys(in_redis.org, event)
        bookings = await self._builder.read_all(event)
        now = (await self._builder.read_head(event)).at
        expected = {label: booking for booking in bookings if _claims(booking, now) for label in booking.seats}
        entries = await self._read_entries(keys, in_redis.labels | expected.keys())
        entries = {label: entry for label, entry in entries.items() if entry.generation == mark.generation}
        for label, entry in entries.items():
            if _is_live(entry, now):
                findings.seats += 1
                findings.add(event, _compare_seat(event, org, label, entry, expected.get(label), secret))
        if mark.is_complete and mark.at is not None:
            for label in expected.keys() - entries.keys():
                findings.add(event, _difference(event, "missing", label, expected[label]))
            await self._compare_buyers(findings, keys, org, event, bookings, secret)
            await self._compare_pools(findings, keys, event)

    async def _read_entries(self, keys: EventKeys, labels: Iterable[str]) -> dict[str, SeatEntry]:
        entries: dict[str, SeatEntry] = {}
        for chunk in _chunks(sorted(labels)):
            values = await self._calls.run([("MGET", *map(keys.seat, chunk))], writes=False)
            for label, value in zip(chunk, values[0], strict=True):
                entry = _decode_entry(value)
                if entry is not None:
                    entries[label] = entry
        return entries

    async def _compare_buyers(
        self,
        findings: "_Findings",
        keys: EventKeys,
        org: bytes,
        event: bytes,
        bookings: Iterable[BookedSeats],
        secret: SecretValue,
    ) -> None:
        for chunk in _chunks(list(bookings)):
            known_by = [_known_by(booking, org, secret) for booking in chunk]
            calls = [("SMISMEMBER", keys.known, *each) for each in known_by]
            for booking, found in zip(chunk, await self._calls.run(calls, writes=False), strict=True):
                if not all(found):
                    findings.add(event, _difference(event, "unknown_buyer", None, booking))

    async def _compare_pools(self, findings: "_Findings", keys: EventKeys, event: bytes) -> None:
        """Counts can be compared only if Redis and PostgreSQL are at the same version."""
        (state,) = await self._calls.run([("HGETALL", keys.state)], writes=False)
        version = int(state.get(b"version", -1))
        (now,) = await self._database.all_events.rows(
            EventChanges, *sql.gate.changes(events=[event], versions=[version], entries_max=1)
        )
        if now.version == version:
            for code, left in (now.pools or {}).items():
                in_redis = state.get(b"pool:" + code.encode())
                if in_redis is not None and in_redis.partition(b"@")[0] != b"%d" % left:
                    findings.add(event, Difference(event=ids.format_event_id(event), kind="wrong_count", pool=code))


class _EventInRedis(Struct, frozen=True):
    """An event of which Redis has keys, with the labels of the seats."""

    org: bytes
    labels: set[str]


class _Findings:
    def __init__(self) -> None:
        self.events = 0
        self.asleep: list[str] = []
        self.seats = 0
        self._by_event: dict[bytes, set[Difference]] = {}

    def add(self, event: bytes, difference: Difference | None) -> None:
        if difference is not None:
            self._by_event.setdefault(event, set()).add(difference)

    @property
    def differences(self) -> list[Difference]:
        return [difference for found in self._by_event.values() for difference in found]

    @property
    def events_that_differ(self) -> list[bytes]:
        return list(self._by_event)

    def keep_lasting(self, later: "_Findings") -> "_Findings":
        """Those that were found both times."""
        lasting = _Findings()
        for event, found in self._by_event.items():
            for difference in found & later._by_event.get(event, set()):
                lasting.add(event, difference)
        return lasting


def _claims(booking: BookedSeats, now: datetime) -> bool:
    is_due = booking.status in TIMED and booking.expires_at is not None and booking.expires_at <= now
    return booking.status in CLAIMING and not is_due


def _is_live(entry: SeatEntry, now: datetime) -> bool:
    """Pending entries do not count: they are holds in flight, and expire within seconds."""
    has_ended = entry.expires_at is not None and entry.expires_at <= format_time(now)
    return entry.state in ("held", "sold") and not has_ended


def _compare_seat(
    event: bytes, org: bytes, label: str, entry: SeatEntry, booking: BookedSeats | None, secret: SecretValue
) -> Difference | None:
    if booking is None:
        return Difference(
            event=ids.format_event_id(event),
            kind="free_in_database",
            seat=label,
            booking_in_redis=entry.booking,
        )
    deadline = format_time(booking.expires_at) if booking.status in TIMED and booking.expires_at else None
    expected = (
        ids.format_booking_id(event, booking.id),
        hash_user(secret, org, booking.user),
        SEAT_STATE_BY_STATUS[booking.status],
        deadline,
    )
    if (entry.booking, entry.user_id, entry.state, entry.expires_at) == expected:
        return None
    return _difference(event, "different", label, booking, entry.booking)


def _difference(
    event: bytes, kind: Kind, seat: str | None, booking: BookedSeats, in_redis: str | None = None
) -> Difference:
    return Difference(
        event=ids.format_event_id(event),
        kind=kind,
        seat=seat,
        booking=ids.format_booking_id(event, booking.id),
        booking_in_redis=in_redis,
    )


def _known_by(booking: BookedSeats, org: bytes, secret: SecretValue) -> list[str]:
    known_by = [user_id(hash_user(secret, org, booking.user)), request_id(booking.request_key)]
    return known_by if booking.client is None else [*known_by, client_id(booking.client)]


def _decode_entry(value: bytes | None) -> SeatEntry | None:
    try:
        return json.decode(value, type=SeatEntry) if value is not None else None
    except (DecodeError, ValidationError):
        return None


def _chunks(items: list[T]) -> Iterable[list[T]]:
    return (items[at : at + KEYS_AT_ONCE] for at in range(0, len(items), KEYS_AT_ONCE))
