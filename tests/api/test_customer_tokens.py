"""Customer tokens survive a new secret of their org for the overlap, and no longer."""

from types import SimpleNamespace
from typing import Final

import httpx
import jwt
import pytest

from holdfast.api.auth import CACHE_SECONDS, Authenticator
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import sign_customer_token
from tests.support.command_line import call_holdfast
from tests.support.engine_harness import async_test, lane_connection, new_org
from tests.support.harness import Org, Server, query
from tests.support.http_assertions import expect_ok

BOOKINGS: Final = "/v1/bookings"


@pytest.fixture
def tenant(server: Server) -> Org:
    return Org(server.database_url)


def _create_token(server: Server, tenant: Org, user: str = "ada") -> str:
    with server.client(tenant.headers()) as clerk:
        token: str = expect_ok(clerk.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
        return token


def _status(server: Server, token: str) -> int:
    return httpx.get(
        f"{server.url}{BOOKINGS}", headers={"Authorization": f"Bearer {token}"}, timeout=30, verify=False
    ).status_code


def _rotate(server: Server, tenant: Org, *options: str) -> None:
    done = call_holdfast(server.database_url, "orgs", "rotate-token-secret", tenant.slug, *options)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_token_stays_valid_while_its_secret_overlaps_with_the_next_ones(server: Server, tenant: Org) -> None:
    tokens = [_create_token(server, tenant)]
    for _ in range(2):
        _rotate(server, tenant)
        tokens.append(_create_token(server, tenant))
    org = ids.format_org_id(tenant.id)
    assert [jwt.get_unverified_header(token)["kid"] for token in tokens] == [f"{org}.{number}" for number in (1, 2, 3)]
    assert [_status(server, token) for token in tokens] == [200, 200, 200]


def test_a_token_is_refused_once_the_overlap_is_over(server: Server, tenant: Org) -> None:
    tokens = [_create_token(server, tenant)]
    _rotate(server, tenant)
    tokens.append(_create_token(server, tenant))
    _rotate(server, tenant, "--overlap-hours", "0")
    tokens.append(_create_token(server, tenant))
    assert [_status(server, token) for token in tokens] == [401, 401, 200]
    assert query(server.database_url, "SELECT FROM old_token_secret WHERE org_id = $1", tenant.id) == []


def test_a_token_that_names_no_secret_is_from_the_first(server: Server, tenant: Org) -> None:
    """Such tokens were signed before an org could have several secrets."""
    new = _create_token(server, tenant)
    (row,) = query(server.database_url, "SELECT token_secret FROM org WHERE id = $1", tenant.id)
    claims = jwt.decode(new, options={"verify_signature": False})
    old = jwt.encode(claims, row["token_secret"], headers={"kid": ids.format_org_id(tenant.id)})
    _rotate(server, tenant)
    assert _status(server, old) == 200
    for number in ("0", "2", "01", "-1", "x", "9" * 9, "9" * 99, "1.1"):
        kid = f"{ids.format_org_id(tenant.id)}.{number}"
        assert _status(server, jwt.encode(claims, row["token_secret"], headers={"kid": kid})) == 401, number


def test_another_org_keeps_its_secret(server: Server, tenant: Org) -> None:
    other = Org(server.database_url)
    token = _create_token(server, other)
    _rotate(server, tenant, "--overlap-hours", "0")
    assert _status(server, token) == 200


@pytest.mark.parametrize("seconds_left", [CACHE_SECONDS / 2, 2 * CACHE_SECONDS])
@async_test
async def test_a_process_remembers_a_token_no_longer_than_it_is_valid(
    database: str, monkeypatch: pytest.MonkeyPatch, seconds_left: float
) -> None:
    async with lane_connection(database) as connection:
        scope = db.Database(connection)
        token, expires_at = await sign_customer_token(scope, await new_org(connection), "ada", 600)
        clock = SimpleNamespace(time=lambda: expires_at.timestamp() - seconds_left, monotonic=lambda: 0.0)
        monkeypatch.setattr("holdfast.api.auth.time", clock)
        authenticator = Authenticator(scope)
        await authenticator.identify(token)
    for passed in (0.1, 0.9, 1.1):
        at = passed * min(seconds_left, CACHE_SECONDS)
        monkeypatch.setattr(clock, "monotonic", lambda at=at: at)
        assert (authenticator.find_cached(token) is not None) == (passed < 1)


def test_two_tokens_for_one_user_differ(server: Server, tenant: Org) -> None:
    assert len({_create_token(server, tenant) for _ in range(5)}) == 5


def test_the_secret_of_an_unknown_org_cannot_be_rotated(server: Server) -> None:
    done = call_holdfast(server.database_url, "orgs", "rotate-token-secret", "nobody")
    assert done.returncode == 2
    assert "There is no org nobody" in done.stderr
