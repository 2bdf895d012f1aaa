"""The caller's own org as buyers see it. The path never names one."""

from holdfast.api import branding
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import OrgChange
from holdfast.api.responses import OrgView
from holdfast.runtime.db import DatabaseScope


async def get_org(call: Call) -> ApiResponse[OrgView]:
    return ApiResponse(await branding.get_org(_scope(call), call.caller.org, call.services.settings.public_url))


async def change_org(call: Call, body: OrgChange) -> ApiResponse[OrgView]:
    await branding.change_org(_scope(call), call.caller.org, body)
    return await get_org(call)


async def set_logo(call: Call, body: bytes) -> ApiResponse[OrgView]:
    await branding.set_logo(_scope(call), call.caller.org, body)
    return await get_org(call)


async def delete_logo(call: Call) -> ApiResponse[OrgView]:
    await branding.delete_logo(_scope(call), call.caller.org)
    return await get_org(call)


def _scope(call: Call) -> DatabaseScope:
    return call.services.database.org(call.caller.org)
