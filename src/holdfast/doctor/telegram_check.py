"""Whether Telegram accepts the tokens of the bots: the one in the settings, and those that orgs have connected."""

import asyncio
from typing import Final

import httpx
from msgspec import Struct, ValidationError, json

from holdfast import sql
from holdfast.doctor.check import CheckResult, Results, ok, problem
from holdfast.doctor.database_access import SkippedError
from holdfast.doctor.installation import Installation

SECONDS: Final = 5.0
BOTS_MAX: Final = 20


class ConnectedBot(Struct, frozen=True):
    slug: str
    token: str


class _User(Struct, frozen=True):
    username: str = ""


class _Reply(Struct, frozen=True):
    ok: bool
    result: _User = _User()


async def check_telegram(installation: Installation) -> Results:
    api = installation.settings.telegram_api.rstrip("/")
    bots = await _find_bots(installation)
    if not bots:
        return
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        for result in await asyncio.gather(*(_ask(client, api, name, token) for name, token in bots.items())):
            yield result


async def _find_bots(installation: Installation) -> dict[str, str]:
    """Tokens by what the operator knows them as."""
    token = installation.settings.telegram_token
    found = {"HOLDFAST_TELEGRAM_TOKEN": token} if token is not None else {}
    try:
        database = await installation.database.require_schema()
    except SkippedError:
        return found
    rows = await database.shared.rows(ConnectedBot, sql.doctor.bots, BOTS_MAX)
    return found | {f"the bot of {row.slug}": row.token for row in rows if row.token != token}


async def _ask(client: httpx.AsyncClient, api: str, name: str, token: str) -> CheckResult:
    """The URL contains the token, and so may the text of an error."""
    try:
        response = await client.get(f"{api}/bot{token}/getMe")
        reply = json.decode(response.content, type=_Reply)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        if isinstance(error, ValidationError):
            return problem(f"Something other than Telegram answers for {name}.", "Check HOLDFAST_TELEGRAM_API.")
        return problem(
            f"Telegram cannot be reached for {name} ({type(error).__name__}).",
            "Check that this machine may open connections to api.telegram.org, and HOLDFAST_TELEGRAM_API.",
        )
    if reply.ok:
        return ok(f"Telegram accepts {name}: @{reply.result.username}.")
    if response.status_code in (401, 404):
        return problem(
            f"Telegram refuses the token of {name}.",
            "Get the current token from @BotFather, and run `holdfast bot connect` with it.",
        )
    return problem(f"Telegram answers {response.status_code} for {name}.", "Try again in a few minutes.")
