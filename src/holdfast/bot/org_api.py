"""The API as the bot calls it: in the same process, as one of the org's workers or as a member of its staff."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct, json

from holdfast.api import event_handlers as events
from holdfast.api.auth import Caller, customer_caller
from holdfast.api.booking_schemas import BookingView
from holdfast.api.call import ApiResponse, Handler
from holdfast.api.in_process import InProcessApi
from holdfast.api.responses import EventView
from holdfast.core.actors import BOT_ACTOR, STAFF_ACTOR
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import RequestModel
from holdfast.runtime import ids
from holdfast.runtime.credentials import Role

Content = TypeVar("Content")

# The users of the org who are workers in Telegram.
USER_PREFIX: Final = "telegram:"


class BusyError(Exception):
    """Holdfast is busy, or its database is away. The same call succeeds at some point."""


def user_of(person: int) -> str:
    return f"{USER_PREFIX}{person}"


def person_of(user: str) -> int | None:
    """The Telegram id of a user, if the user is a worker in Telegram."""
    found = re.fullmatch(rf"{USER_PREFIX}(\d{{1,18}})", user, re.ASCII)
    return int(found[1]) if found is not None else None


class PoolCount(Struct, frozen=True):
    code: str
    capacity: int
    remaining: int


class Places(Struct, frozen=True):
    """How many places a shift has, and how many are left."""

    pools: list[PoolCount]

    @property
    def capacity(self) -> int:
        return sum(pool.capacity for pool in self.pools)

    @property
    def left(self) -> int:
        return sum(pool.remaining for pool in self.pools)

    @property
    def free_pool(self) -> str | None:
        return next((pool.code for pool in self.pools if pool.remaining > 0), None)


def event_id_of(view: EventView) -> bytes:
    found = ids.parse_event_id(view.id)
    assert found is not None
    return found


def booking_ids_of(view: BookingView) -> tuple[bytes, bytes]:
    """The ids of its event and of the booking."""
    found = ids.parse_booking_id(view.id)
    assert found is not None
    return found


class OrgApi:
    def __init__(self, api: InProcessApi, org: bytes) -> None:
        self._api = api
        self._org = org

    async def as_worker(
        self,
        person: int,
        handler: Callable[..., Awaitable[ApiResponse[Content]]],
        id: str = "",  # noqa: A002 (as the path parameter is called)
        *,
        query: RequestModel | None = None,
        body: Struct | bytes | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> ApiResponse[Content]:
        caller = customer_caller(self._org, user_of(person))
        # Telegram does not tell where a worker is, so limits by address count each worker alone.
        return await self._call(handler, caller, user_of(person), id, query, body, headers)

    async def check_as_worker(self, person: int, handler: Handler, id: str) -> None:  # noqa: A002
        """Refuse a call before its body is at hand."""
        await self._api.check(handler, customer_caller(self._org, user_of(person)), id=id)

    async def as_staff(
        self,
        person: int | None,
        handler: Callable[..., Awaitable[ApiResponse[Content]]],
        id: str = "",  # noqa: A002 (as the path parameter is called)
        *,
        query: RequestModel | None = None,
        body: Struct | bytes | None = None,
    ) -> Content:
        """As a member of the admin chat, or as the bot itself."""
        return (await self._call(handler, self._staff(person), "", id, query, body, None)).content

    async def download(
        self,
        handler: Callable[..., Awaitable[ApiResponse[object]]],
        id: str,  # noqa: A002
    ) -> tuple[bytes, str]:
        """Content that comes encoded, such as a file, and its type. The bot itself asks for it."""
        response: ApiResponse[object] = await self._call(handler, self._staff(None), "", id, None, None, None)
        assert isinstance(response.body, bytes)
        return response.body, response.content_type.decode()

    async def load_event(self, event: bytes) -> EventView:
        return await self.as_staff(None, events.get_event, ids.format_event_id(event))

    async def find_event(self, event: bytes) -> EventView | None:
        try:
            return await self.load_event(event)
        except RefusedError:
            return None

    async def load_places(self, event: bytes) -> Places:
        content, _ = await self.download(events.get_availability, ids.format_event_id(event))
        return json.decode(content, type=Places)

    def _staff(self, person: int | None) -> Caller:
        return Caller(self._org, Role.ADMIN, BOT_ACTOR if person is None else f"{STAFF_ACTOR}{person}")

    async def _call(
        self,
        handler: Callable[..., Awaitable[ApiResponse[Content]]],
        caller: Caller,
        address: str,
        id: str,  # noqa: A002
        query: RequestModel | None,
        body: Struct | bytes | None,
        headers: Mapping[bytes, bytes] | None,
    ) -> ApiResponse[Content]:
        try:
            return await self._api.call(
                handler, caller, address=address, id=id, query=query, body=body, headers=headers
            )
        except RefusedError as error:
            if error.refused.refusal is Refusal.BUSY:
                raise BusyError from None
            raise
