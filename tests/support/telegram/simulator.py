"""The chat page, on which a person plays the people of a test in a browser."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from PIL import Image, ImageDraw

from tests.support.telegram.chats import Channel, Chat, PrivateChat
from tests.support.telegram.entities import FormattedText
from tests.support.telegram.errors import ApiError
from tests.support.telegram.messages import CallbackQuery, Message
from tests.support.telegram.people import User

if TYPE_CHECKING:
    from tests.support.telegram_server import TelegramServer

PAGE = Path(__file__).parent.parent / "telegram_chat.html"
WAIT_SECONDS = 20.0
SHOWN_MESSAGES = 200
SHOWN_ANSWERS = 20


class Simulator:
    def __init__(self, server: TelegramServer) -> None:
        self._server = server
        self._actions: dict[str, Callable[[User, dict[str, Any]], object]] = {
            "start": lambda user, act: user.start(self._bot(act), act.get("payload")),
            "say": lambda user, act: user.say(self._chat(user, act), act["text"]),
            "press": lambda user, act: user.press(self._message(user, act), act["button"]),
            "open": lambda user, act: user.open_link(act["url"]),
            "photo": lambda user, act: user.send_photo(self._chat(user, act), _decode(act), act.get("caption")),
            "receipt": lambda user, act: user.send_photo(self._chat(user, act), draw_receipt(user.name)),
            "document": lambda user, act: user.send_document(
                self._chat(user, act), _decode(act), act["name"], act["mime_type"], act.get("caption")
            ),
            "contact": lambda user, act: user.share_contact(self._bot(act), act["phone"]),
            "block": lambda user, act: user.block(self._bot(act)),
            "unblock": lambda user, act: user.unblock(self._bot(act)),
            "post": self._post,
        }

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/", self._get_page)
        app.router.add_get("/sim/state", self._get_state)
        app.router.add_get("/sim/file/{id}", self._get_file)
        app.router.add_post("/sim/act", self._act)

    async def _get_page(self, _: web.Request) -> web.Response:
        return web.Response(text=PAGE.read_text(), content_type="text/html")

    async def _get_state(self, request: web.Request) -> web.Response:
        """Answer once something has changed since the given revision."""
        since = int(request.query.get("since", "-1"))
        if self._server.revision <= since:
            await self._server.wait_for_change(WAIT_SECONDS)
        return web.json_response(self._describe())

    async def _get_file(self, request: web.Request) -> web.Response:
        try:
            file = self._server.files.find(request.match_info["id"])
        except ApiError as error:
            return web.json_response(error.to_wire(), status=404)
        # A browser must not run what a person uploaded.
        headers = {"Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff"}
        if not file.mime_type.startswith("image/"):
            headers["Content-Disposition"] = "attachment"
        return web.Response(body=file.data, content_type=file.mime_type.partition(";")[0], headers=headers)

    async def _act(self, request: web.Request) -> web.Response:
        # Only a page of our own origin may send JSON.
        if request.content_type != "application/json":
            return web.json_response({"error": "Send JSON."}, status=415)
        act = await request.json()
        try:
            if act["do"] == "add_user":
                first_name, _, last_name = str(act["name"]).partition(" ")
                id_ = max([1000, *self._server.users]) + 1
                self._server.user(id_, first_name, last_name or None)
                return web.json_response({"id": id_})
            self._actions[act["do"]](self._server.users[int(act["as"])], act)
        except (AssertionError, KeyError, ValueError) as error:
            return web.json_response({"error": str(error) or type(error).__name__}, status=400)
        return web.json_response({})

    def _bot(self, act: dict[str, Any]) -> Any:
        return next(bot for bot in self._server.bots.values() if bot.id == int(act["bot"]))

    def _chat(self, user: User, act: dict[str, Any]) -> Chat:
        return user.chat(self._bot(act)) if act.get("bot") else self._server.chats[int(act["chat"])]

    def _message(self, user: User, act: dict[str, Any]) -> Message:
        message = self._chat(user, act).find_message(int(act["message"]))
        assert message is not None, "The message is gone."
        return message

    def _post(self, _: User, act: dict[str, Any]) -> None:
        channel = self._server.chats[int(act["chat"])]
        assert isinstance(channel, Channel)
        channel.post(act["text"])

    def _describe(self) -> dict[str, Any]:
        server = self._server
        queries = list(server.callback_queries.values())[-SHOWN_ANSWERS:]
        return {
            "revision": server.revision,
            "bots": [{"id": bot.id, "username": bot.username} for bot in list(server.bots.values())],
            "users": [{"id": user.id, "name": user.name} for user in list(server.users.values())],
            "chats": [_describe_chat(chat) for chat in server.all_chats()],
            "answers": [_describe_answer(query) for query in queries if query.answered],
        }


def _describe_chat(chat: Chat) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": chat.id,
        "type": chat.type,
        "title": chat.title,
        "messages": [_describe_message(message) for message in chat.visible[-SHOWN_MESSAGES:]],
    }
    if isinstance(chat, PrivateChat):
        described |= {
            "bot": chat.bot.id,
            "user": chat.user.id,
            "blocked": chat.members[chat.bot.id] == "kicked",
            "keyboard": chat.reply_keyboard,
        }
    else:
        described["members"] = list(chat.members)
        described["creator"] = next((id_ for id_, status in chat.members.items() if status == "creator"), None)
    return described


def _describe_message(message: Message) -> dict[str, Any]:
    file = message.document_file
    return {
        "id": message.id,
        "revision": message.revision,
        "date": message.date,
        "sender": message.sender.id,
        "name": message.sender.name,
        "html": message.html if message.author else FormattedText(message.body.text).html,
        "photo": message.photo_sizes[-1].file.id if message.photo_sizes else None,
        "document": {"id": file.id, "name": file.name, "size": len(file.data)} if file else None,
        "contact": message.contact.to_wire() if message.contact else None,
        "rows": [[button.to_wire() for button in row] for row in message.keyboard],
        "edited": bool(message.edits),
    }


def _describe_answer(query: CallbackQuery) -> dict[str, Any]:
    return {"id": query.id, "user": query.user.id, "text": query.answer_text, "alert": query.show_alert}


def _decode(act: dict[str, Any]) -> bytes:
    return base64.b64decode(act["data"], validate=True)


def draw_receipt(name: str, payee: str = "Harbour Staffing", amount: str = "7.50 EUR", reference: str = "") -> bytes:
    """A picture of a bank's receipt. No two are the same, because bots notice a receipt that they have seen before."""
    now = datetime.now(UTC)
    image = Image.new("RGB", (960, 620), "#eaf1ee")
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((36, 36, 924, 584), 36, fill="#ffffff")
    draw.ellipse((80, 72, 180, 172), fill="#1f8a63")
    draw.line([(105, 124), (125, 144), (157, 102)], fill="#ffffff", width=11, joint="curve")
    draw.text((212, 70), "Transfer completed", fill="#5d6f68", font_size=34)
    draw.text((210, 108), amount, fill="#12211b", font_size=58, stroke_width=1)
    rows = {
        "From": name,
        "To": payee,
        "Reference": reference or "Shift",
        "Date": f"{now:%d %B %Y}",
        "Operation": f"{now:%y%m%d}-{secrets.randbelow(10**8):08}",
    }
    for at, (label, value) in enumerate(rows.items()):
        y = 196 + at * 74
        draw.line([(80, y), (880, y)], fill="#e3eae7", width=2)
        draw.text((80, y + 38), label, fill="#7a8a83", font_size=32, anchor="lm")
        draw.text((880, y + 38), value, fill="#12211b", font_size=34, anchor="rm")
    file = BytesIO()
    image.save(file, "JPEG", quality=88)
    return file.getvalue()
