"""Puts the request id into responses that do not come from an endpoint of the API: pages and files."""

from starlette.types import Message, Send

from holdfast.runtime.request_ids import HEADER


def add_request_id(send: Send, request_id: str) -> Send:
    header = (HEADER, request_id.encode())

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [each for each in message.get("headers", ()) if each[0] != HEADER]
            message = {**message, "headers": [*headers, header]}
        await send(message)

    return send_with_header
