"""A session lasts as long as its bookings matter, survives a new secret, and ends."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

import httpx
import jwt
import pytest

from holdfast.runtime import db, ids, shared_secrets
from holdfast.runtime.cli_secrets import OVERLAP_HOURS_MAX
from holdfast.runtime.shared_secrets import SecretName, SharedSecret, rotate_secret
from holdfast.web.session import RENEWAL_SECONDS, SESSION_SECONDS, SESSION_SECONDS_MAX, new_session
from tests.support.command_line import call_holdfast
from tests.support.engine_harness import async_test, lane_connection, new_event
from tests.support.harness import Server, example_event, publish_event, query
from tests.support.html_client import (
    Form,
    get_as_new_visitor,
    get_page,
    hold_on_page,
    parse_page,
    submit_form,
)
from tests.support.http_assertions import expect_ok
from tests.support.local_pages import LocalPages, local_pages

DAY: Final = 86_400
STANDING: Final = {"quantity__1__0": "2"}


def _claims(cookie: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(cookie, options={"verify_signature": False})
    return claims


def _secret_number(cookie: str) -> str:
    number: str = jwt.get_unverified_header(cookie)["kid"]
    return number


def _sign_again(server: Server, cookie: str, **claims: Any) -> str:
    """The cookie as this server would have signed it with other claims."""
    secret = query(server.database_url, "SELECT value FROM secret WHERE name = 'sessions'")[0]["value"]
    return jwt.encode({**_claims(cookie), **claims}, secret, headers={"kid": _secret_number(cookie)})


def test_a_visit_makes_a_session_last_longer(server: Server, buyer: httpx.Client) -> None:
    buyer.get("/")
    now, fresh = int(time.time()), buyer.cookies["holdfast"]
    for age, is_renewed in ((RENEWAL_SECONDS - 600, False), (RENEWAL_SECONDS + 600, True)):
        old = _sign_again(server, fresh, iat=now - age, exp=now + SESSION_SECONDS - age)
        answer = get_as_new_visitor(server.url, headers={"cookie": f"holdfast={old}"})
        assert ("set-cookie" in answer.headers) is is_renewed
    renewed = _claims(answer.cookies["holdfast"])
    assert renewed["session"] == _claims(fresh)["session"]
    assert renewed["exp"] >= now + SESSION_SECONDS
    assert f"Max-Age={SESSION_SECONDS};" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    ("days", "seconds"), [(-1, SESSION_SECONDS), (90, 90 * DAY + SESSION_SECONDS), (900, SESSION_SECONDS_MAX)]
)
def test_a_guest_keeps_their_session_until_their_event_is_over(
    server: Server, admin: httpx.Client, buyer: httpx.Client, days: int, seconds: int
) -> None:
    before = time.time()
    starts_at = datetime.now(UTC) + timedelta(days=days, hours=-3)
    ends_at = starts_at + timedelta(hours=3)
    event = example_event(
        starts_at=starts_at.isoformat(),
        ends_at=ends_at.isoformat(),
        sales_close_at=(datetime.now(UTC) + timedelta(days=901)).isoformat(),
    )
    hold_on_page(buyer, publish_event(admin, event), **STANDING)
    claims = _claims(buyer.cookies["holdfast"])
    assert claims["exp"] >= int(before) + seconds - 1
    assert claims["exp"] - claims["iat"] <= seconds


def test_a_guest_in_a_frame_keeps_their_session_until_their_event_is_over(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """A script places the hold. In a frame of another site, browsers drop the cookie of its answer."""
    starts_at = datetime.now(UTC) + timedelta(days=90)
    event = publish_event(admin, example_event(starts_at=starts_at.isoformat(), ends_at=None))
    form = get_page(buyer, f"/e/{event}").form("/hold")
    before = buyer.cookies["holdfast"]
    script = {"accept": "application/json", "sec-fetch-dest": "empty"}
    booking = expect_ok(submit_form(buyer, form, script, **STANDING), 201)
    frame = {"sec-fetch-dest": "iframe", "cookie": f"holdfast={before}"}
    answer = get_as_new_visitor(server.url + booking["booking"], headers=frame)
    assert answer.headers["set-cookie"].endswith("SameSite=none; Secure; Partitioned")
    after = answer.cookies["holdfast"]
    assert _claims(after)["exp"] >= starts_at.timestamp() + SESSION_SECONDS - 1
    answer = get_as_new_visitor(server.url + booking["booking"], headers={**frame, "cookie": f"holdfast={after}"})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


async def _end(connection: db.Connection, *, signs: bool = False, valid: bool = False) -> None:
    """Let the time pass until new values sign, or until old ones are no longer valid."""
    if signs:
        await connection.execute("UPDATE secret SET signs_from = holdfast_now()")
    if valid:
        await connection.execute("UPDATE secret SET valid_until = holdfast_now() WHERE valid_until IS NOT NULL")


async def _get(pages: LocalPages, path: str) -> str:
    """The cookie of the browser after a page."""
    await pages.get(path)
    return pages.client.cookies["holdfast"]


async def _hold(pages: LocalPages, form: Form) -> int:
    headers = {"Origin": "http://shop", "Sec-Fetch-Site": "same-origin"}
    fields = {**form.fields, "quantity.1.0": "1"}
    return (await pages.client.post(form.action, data=fields, headers=headers)).status_code


@asynccontextmanager
async def _two_processes(database: str) -> AsyncIterator[tuple[LocalPages, LocalPages]]:
    """The pages of two processes, for the same browser."""
    async with local_pages(database) as one, local_pages(database) as other:
        other.client.cookies.jar = one.client.cookies.jar
        yield one, other


@async_test
async def test_sessions_and_forms_survive_a_new_secret(database: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_secrets, "CACHE_SECONDS", 0)
        async with lane_connection(database) as connection, _two_processes(database) as (one, other):
            path = f"/e/{(await new_event(connection)).text}"
            first = await _get(one, path)
            form = parse_page(await one.client.get(path)).form("/hold")
            await rotate_secret(db.Database(connection), SecretName.SESSIONS, 3600)
            assert await _get(other, path) == first, "other processes may not know the new secret yet"
            await _end(connection, signs=True)
            second = await _get(other, path)
            assert (_secret_number(first), _secret_number(second)) == ("1", "2")
            assert _claims(second)["session"] == _claims(first)["session"]
            assert await _get(one, path) == second
            assert await _hold(one, form) == 303, "a form from before the rotation must still work"
            async with local_pages(database) as third:
                answer = await third.client.get(path, headers={"cookie": f"holdfast={first}"})
            assert _claims(answer.cookies["holdfast"])["session"] == _claims(first)["session"]
            await _end(connection, valid=True)
            assert await _hold(one, form) == 403
            assert _claims(await _get(one, path))["session"]["guest"] == _claims(first)["session"]["guest"]
            async with local_pages(database) as third:
                answer = await third.client.get(path, headers={"cookie": f"holdfast={first}"})
            assert _claims(answer.cookies["holdfast"])["session"]["guest"] != _claims(first)["session"]["guest"]


@async_test
async def test_every_process_knows_a_new_secret_before_it_signs(database: str) -> None:
    """A process does not ask the database about a signature that it cannot explain."""
    assert shared_secrets.SIGNS_AFTER_SECONDS > shared_secrets.CACHE_SECONDS
    async with lane_connection(database) as connection:
        await rotate_secret(db.Database(connection), SecretName.SESSIONS, 0)
        (row,) = await connection.fetch("SELECT max(signs_from) AS signs, min(valid_until) AS valid FROM secret")
        assert row["valid"] == row["signs"], "one value signs at any time"


@async_test
async def test_forged_cookies_cause_no_queries(database: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_secrets, "CACHE_SECONDS", 3600)
        async with local_pages(database) as pages:
            await pages.get("/paid")
            pages.statements.clear()
            patch.setattr(SharedSecret, "_read", lambda _: pytest.fail("a forged cookie caused a query"))
            for number in range(5):
                forged = jwt.encode({"session": {}}, b"x" * 32, headers={"kid": str(number)})
                answer = await pages.client.get("/paid", headers={"cookie": f"holdfast={forged}"})
                assert answer.status_code == 200
            assert pages.statements == []


@async_test
async def test_repeated_rotations_leave_no_expired_values(database: str) -> None:
    async with lane_connection(database) as connection:
        for _ in range(4):
            await rotate_secret(db.Database(connection), SecretName.SESSIONS, 3600)
            await _end(connection, signs=True, valid=True)
        rows = await connection.fetch("SELECT number, valid_until IS NULL AS current FROM secret ORDER BY number")
        assert [tuple(row) for row in rows] == [(4, False), (5, True)]


def test_the_command_line_rotates_the_secret_of_sessions(database: str) -> None:
    done = call_holdfast(database, "secrets", "rotate", "sessions", "--overlap-hours", "2")
    assert (done.returncode, done.stdout) == (0, "")
    assert "The old one stays valid until" in done.stderr
    rows = query(database, "SELECT valid_until - holdfast_now() AS left FROM secret ORDER BY number")
    assert timedelta(hours=1.9) < rows[0]["left"] < timedelta(hours=2.1)
    assert rows[1]["left"] is None
    assert call_holdfast(database, "secrets", "rotate", "cookies").returncode == 2


def test_by_default_an_old_secret_stays_valid_as_long_as_any_session(database: str) -> None:
    assert OVERLAP_HOURS_MAX * 3600 == SESSION_SECONDS_MAX
    assert call_holdfast(database, "secrets", "rotate", "sessions").returncode == 0
    (row,) = query(database, "SELECT valid_until - holdfast_now() AS left FROM secret WHERE number = 1")
    assert row["left"] > timedelta(seconds=SESSION_SECONDS_MAX - 60)


def test_a_customer_is_signed_in_for_twelve_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    org = ids.new_id()
    session, signed_in_at = new_session().sign_in(org, "ada"), time.time()
    for hours, user in ((11, "ada"), (13, None)):
        later = signed_in_at + hours * 3600
        monkeypatch.setattr("holdfast.web.session.time", SimpleNamespace(time=lambda at=later: at))
        assert session.customer(org) == user
