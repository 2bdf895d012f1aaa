"""Reads a form that a browser has sent, within bounds."""

import asyncio
from typing import Final

from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request

from holdfast.web.page_problems import PageError, PageProblem

FORM_BYTES_MAX: Final = 64 * 1024
READ_SECONDS: Final = 30
FIELDS_MAX: Final = 500
URLENCODED: Final = "application/x-www-form-urlencoded"


async def read_fields(
    request: Request, bytes_max: int = FORM_BYTES_MAX, fields_max: int = FIELDS_MAX
) -> dict[str, str]:
    """The fields of a form without files. If a field occurs twice, the last one counts."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != URLENCODED:
        raise PageError(PageProblem(422, "invalid_request"))
    form = await read_form(request, bytes_max, fields_max=fields_max)
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}


async def read_form(request: Request, bytes_max: int, *, files_max: int = 0, fields_max: int = FIELDS_MAX) -> FormData:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > bytes_max:
        raise PageError(PageProblem(413, "payload_too_large"))
    try:
        async with asyncio.timeout(READ_SECONDS):
            form = await request.form(max_files=files_max, max_fields=fields_max, max_part_size=FORM_BYTES_MAX)
    except (MultiPartException, HTTPException, FormParserError, ClientDisconnect, TimeoutError):
        raise PageError(PageProblem(422, "invalid_request")) from None
    request.state.has_read_form = True
    return form


def has_unread_form(request: Request) -> bool:
    """Whether the browser has sent a form that was refused before its end."""
    return request.method == "POST" and not getattr(request.state, "has_read_form", False)
