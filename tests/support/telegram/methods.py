"""The methods of the Bot API that need no waiting."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from tests.support.telegram.chats import Chat, PrivateChat
from tests.support.telegram.entities import FormattedText, read_text, units
from tests.support.telegram.errors import NOT_MODIFIED, STALE_QUERY, bad_request, conflict
from tests.support.telegram.files import PHOTO_LIMIT_BYTES, StoredFile
from tests.support.telegram.markup import read_inline_keyboard
from tests.support.telegram.messages import Keyboard, Message
from tests.support.telegram.parameters import Parameters
from tests.support.telegram.people import BotAccount
from tests.support.telegram.update_queue import Webhook
from tests.support.telegram.world import World

Method = Callable[[World, BotAccount, Parameters], Any]
TEXT_LIMIT = 4096
CAPTION_LIMIT = 1024
ANSWER_LIMIT = 200
DEFAULT_CONNECTIONS = 40
SECRET_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,256}")
LOCAL_URL = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])[:/]")
GIFT_TYPES = ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels")
BOT_ABILITIES = {
    "can_join_groups": True,
    "supports_inline_queries": False,
    "can_connect_to_business": False,
    "has_main_web_app": False,
}


def get_me(_: World, bot: BotAccount, __: Parameters) -> Any:
    return {**bot.to_wire(), **BOT_ABILITIES, "can_read_all_group_messages": not bot.privacy_mode}


def set_webhook(_: World, bot: BotAccount, parameters: Parameters) -> Any:
    url, secret = parameters.text("url") or "", parameters.text("secret_token")
    if url and not url.startswith("https://") and not LOCAL_URL.match(url):
        raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
    if secret and not SECRET_TOKEN.fullmatch(secret):
        raise bad_request("secret token contains unallowed characters")
    set_allowed_kinds(bot, parameters)
    if parameters.flag("drop_pending_updates"):
        bot.queue.clear()
    bot.webhook = None
    if url:
        connections = parameters.number("max_connections", DEFAULT_CONNECTIONS)
        bot.webhook = Webhook(url, secret, min(max(connections, 1), 100))
        if bot.poll is not None:
            bot.poll.error = conflict("terminated by setWebhook request")
    return True


def delete_webhook(_: World, bot: BotAccount, parameters: Parameters) -> Any:
    bot.webhook = None
    if parameters.flag("drop_pending_updates"):
        bot.queue.clear()
    return True


def get_webhook_info(_: World, bot: BotAccount, __: Parameters) -> Any:
    info: dict[str, Any] = {
        "url": bot.webhook.url if bot.webhook else "",
        "has_custom_certificate": False,
        "pending_update_count": len(bot.queue.pending),
    }
    if bot.queue.allowed_kinds:
        info["allowed_updates"] = sorted(bot.queue.allowed_kinds)
    if bot.webhook:
        info["max_connections"] = bot.webhook.max_connections
        if bot.webhook.last_error_message:
            info["last_error_date"] = bot.webhook.last_error_date
            info["last_error_message"] = bot.webhook.last_error_message
    return info


def send_message(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    chat = _writable_chat(world, bot, parameters)
    return _post(world, bot, chat, parameters, body=_read_body(parameters, "text", "entities"))


def send_photo(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    chat = _writable_chat(world, bot, parameters)
    body = _read_body(parameters, "caption", "caption_entities")
    upload = parameters.upload("photo")
    data = _find_file(world, parameters, "photo").data if upload is None else upload.data
    if not data:
        raise bad_request("file must be non-empty")
    if len(data) > PHOTO_LIMIT_BYTES:
        size = f"{len(data)} bytes is too big for a photo; the maximum size is {PHOTO_LIMIT_BYTES} bytes"
        raise bad_request(f"file of size {size}")
    return _post(world, bot, chat, parameters, body=body, photo_sizes=world.files.add_photo(data))


def send_document(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    chat = _writable_chat(world, bot, parameters)
    body = _read_body(parameters, "caption", "caption_entities")
    upload = parameters.upload("document")
    if upload is None:
        source = _find_file(world, parameters, "document")
        file = world.files.add(source.data, source.name, source.mime_type)
    elif not upload.data:
        raise bad_request("file must be non-empty")
    else:
        file = world.files.add(upload.data, upload.name, upload.mime_type)
    return _post(world, bot, chat, parameters, body=body, document_file=file)


def edit_message_text(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    message = _message_to_edit(world, bot, parameters)
    if message.is_media:
        raise bad_request("there is no text in the message to edit")
    body = _read_body(parameters, "text", "entities")
    return _edit(world, message, body, read_inline_keyboard(parameters.structure("reply_markup")))


def edit_message_caption(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    message = _message_to_edit(world, bot, parameters)
    if not message.is_media:
        raise bad_request("there is no caption in the message to edit")
    body = _read_body(parameters, "caption", "caption_entities")
    return _edit(world, message, body, read_inline_keyboard(parameters.structure("reply_markup")))


def edit_message_reply_markup(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    message = _message_to_edit(world, bot, parameters)
    return _edit(world, message, message.body, read_inline_keyboard(parameters.structure("reply_markup")))


def delete_message(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    chat = _writable_chat(world, bot, parameters)
    message = chat.find_message(parameters.number("message_id"))
    if message is None:
        raise bad_request("message to delete not found")
    is_administrator = chat.members.get(bot.id) == "administrator"
    if message.author is not bot and not isinstance(chat, PrivateChat) and not is_administrator:
        raise bad_request("message can't be deleted")
    world.delete_message(chat, message.id)
    return True


def answer_callback_query(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    query = world.callback_queries.get(parameters.text("callback_query_id") or "")
    if query is None or query.bot is not bot or query.answered:
        raise bad_request(STALE_QUERY)
    text = parameters.text("text") or ""
    if len(text) > ANSWER_LIMIT:
        raise bad_request("MESSAGE_TOO_LONG")
    query.answer_text, query.show_alert = text or None, parameters.flag("show_alert")
    query.url, query.answered = parameters.text("url"), True
    world.note_change()
    return True


def get_file(world: World, _: BotAccount, parameters: Parameters) -> Any:
    return world.files.open_path(parameters.text("file_id") or "")


def get_chat(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    chat = world.find_chat(bot, parameters.chat_id())
    gifts = dict.fromkeys(GIFT_TYPES, False)
    return {**chat.to_wire(), "accent_color_id": 0, "max_reaction_count": 11, "accepted_gift_types": gifts}


def get_chat_member(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    chat = world.find_chat(bot, parameters.chat_id())
    user_id = parameters.number("user_id")
    account = bot if user_id == bot.id else world.users.get(user_id)
    if account is None:
        raise bad_request("invalid user_id specified")
    return chat.member_to_wire(account)


def set_my_commands(_: World, bot: BotAccount, parameters: Parameters) -> Any:
    bot.commands[_commands_key(parameters)] = parameters.structure("commands") or []
    return True


def get_my_commands(_: World, bot: BotAccount, parameters: Parameters) -> Any:
    return bot.commands.get(_commands_key(parameters), [])


def delete_my_commands(_: World, bot: BotAccount, parameters: Parameters) -> Any:
    bot.commands.pop(_commands_key(parameters), None)
    return True


def send_chat_action(world: World, bot: BotAccount, parameters: Parameters) -> Any:
    _writable_chat(world, bot, parameters)
    if not parameters.text("action"):
        raise bad_request("wrong parameter action in request")
    return True


METHODS: dict[str, Method] = {
    "getMe": get_me,
    "setWebhook": set_webhook,
    "deleteWebhook": delete_webhook,
    "getWebhookInfo": get_webhook_info,
    "sendMessage": send_message,
    "sendPhoto": send_photo,
    "sendDocument": send_document,
    "editMessageText": edit_message_text,
    "editMessageCaption": edit_message_caption,
    "editMessageReplyMarkup": edit_message_reply_markup,
    "deleteMessage": delete_message,
    "answerCallbackQuery": answer_callback_query,
    "getFile": get_file,
    "getChat": get_chat,
    "getChatMember": get_chat_member,
    "setMyCommands": set_my_commands,
    "getMyCommands": get_my_commands,
    "deleteMyCommands": delete_my_commands,
    "sendChatAction": send_chat_action,
}


def set_allowed_kinds(bot: BotAccount, parameters: Parameters) -> None:
    """Without the parameter, the earlier choice stays."""
    kinds = parameters.structure("allowed_updates")
    if kinds is not None:
        bot.queue.allowed_kinds = frozenset(kinds)


def _commands_key(parameters: Parameters) -> str:
    """The scope and language that a list of commands is for."""
    scope = parameters.structure("scope") or {}
    return f"{scope.get('type', 'default')}:{scope.get('chat_id', '')}:{parameters.text('language_code') or ''}"


def _writable_chat(world: World, bot: BotAccount, parameters: Parameters) -> Chat:
    chat = world.find_chat(bot, parameters.chat_id())
    chat.check_writable(bot)
    return chat


def _read_body(parameters: Parameters, name: str, entities_name: str) -> FormattedText:
    body = read_text(parameters.text(name) or "", parameters.text("parse_mode"), parameters.structure(entities_name))
    if name == "text" and not body.text:
        raise bad_request("message text is empty")
    if name == "text" and units(body.text) > TEXT_LIMIT:
        raise bad_request("message is too long")
    if name == "caption" and units(body.text) > CAPTION_LIMIT:
        raise bad_request("message caption is too long")
    return body


def _find_file(world: World, parameters: Parameters, name: str) -> StoredFile:
    value = parameters.text(name)
    if not value:
        raise bad_request(f"there is no {name} in the request")
    if "://" in value:
        # Telegram would download it. Nothing in a test is on the internet.
        raise bad_request("wrong file identifier/HTTP URL specified")
    return world.files.find(value)


def _post(world: World, bot: BotAccount, chat: Chat, parameters: Parameters, **content: Any) -> Any:
    markup = parameters.structure("reply_markup")
    keyboard = read_inline_keyboard(markup)
    sender: Any = chat if chat.type == "channel" else bot
    message = Message(
        chat,
        0,
        sender,
        int(time.time()),
        keyboard=keyboard,
        reply_markup=markup or None,
        author=bot,
        reply_to=_replied_message(chat, parameters),
        **content,
    )
    return world.post(message).to_wire()


def _replied_message(chat: Chat, parameters: Parameters) -> Message | None:
    reply = parameters.structure("reply_parameters") or {}
    id_ = int(reply.get("message_id") or parameters.number("reply_to_message_id"))
    replied = chat.find_message(id_) if id_ else None
    optional = reply.get("allow_sending_without_reply") or parameters.flag("allow_sending_without_reply")
    if id_ and replied is None and not optional:
        raise bad_request("message to be replied not found")
    return replied


def _message_to_edit(world: World, bot: BotAccount, parameters: Parameters) -> Message:
    chat = _writable_chat(world, bot, parameters)
    message = chat.find_message(parameters.number("message_id"))
    if message is None:
        raise bad_request("message to edit not found")
    if message.author is not bot:
        raise bad_request("message can't be edited")
    return message


def _edit(world: World, message: Message, body: FormattedText, keyboard: Keyboard) -> Any:
    if (body, keyboard) == (message.body, message.keyboard):
        raise bad_request(NOT_MODIFIED)
    world.edit(message, body, keyboard)
    return message.to_wire()
