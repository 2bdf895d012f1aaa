"""The Telegram server of the tests behaves like Telegram towards a real client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import pytest
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.enums import ParseMode
from aiogram.exceptions import (
    TelegramBadRequest,
    TelegramConflictError,
    TelegramForbiddenError,
    TelegramNetworkError,
    TelegramRetryAfter,
    TelegramUnauthorizedError,
)
from aiogram.types import (
    BufferedInputFile,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    KeyboardButton,
    ReplyKeyboardMarkup,
)
from aiohttp import web

from tests.support.sample_files import SAMPLES
from tests.support.telegram_server import (
    BotAccount,
    FloodLimits,
    TelegramServer,
    User,
    running_telegram_server,
)

TOKEN = "4242:AAF-token-of-tests"
SECRET = "secret-of-tests"
GROUP_ID, CHANNEL_ID = -1001, -1002


class Stage:
    """A bot, and a person who has started it."""

    def __init__(self, server: TelegramServer, client: Bot) -> None:
        self.server = server
        self.client = client
        self.account: BotAccount = server.bots[TOKEN]
        self.ana: User = server.user(7, "Ana", "Lopez", "ana")
        self.ana.start(self.account, "promo")
        self.chat = self.ana.chat(self.account)


Test = Callable[[Stage], Coroutine[Any, Any, None]]


def on_stage(test: Test) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(play())

    async def play() -> None:
        async with TelegramServer() as server:
            server.add_bot(TOKEN, "holdfast_bot")
            async with client_of(server) as client:
                await test(Stage(server, client))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@asynccontextmanager
async def client_of(server: TelegramServer, token: str = TOKEN) -> AsyncIterator[Bot]:
    session = AiohttpSession(api=TelegramAPIServer.from_base(server.url))
    async with Bot(token, session=session) as client:
        yield client


async def expect_refusal(call: Awaitable[object], text: str, error: type[Exception] = TelegramBadRequest) -> None:
    with pytest.raises(error) as caught:
        await call
    assert text in str(caught.value)


def buttons(*texts: str) -> InlineKeyboardMarkup:
    rows = [[InlineKeyboardButton(text=text, callback_data=text.lower())] for text in texts]
    return InlineKeyboardMarkup(inline_keyboard=rows)


@on_stage
async def test_a_bot_sends_edits_and_deletes_a_message(stage: Stage) -> None:
    client, chat = stage.client, stage.chat
    sent = await client.send_message(7, "Hi <strong>Ana</strong> 🎉 &amp; <i>you</i>", parse_mode=ParseMode.HTML)
    assert (sent.text, sent.html_text) == ("Hi Ana 🎉 & you", "Hi <b>Ana</b> 🎉 &amp; <i>you</i>")
    assert chat.last.html == sent.html_text

    await client.edit_message_text("Bye", chat_id=7, message_id=sent.message_id, reply_markup=buttons("Yes"))
    assert (chat.last.text, chat.last.buttons) == ("Bye", ["Yes"])
    assert [edit.html for edit in chat.last.edits] == ["Hi <b>Ana</b> 🎉 &amp; <i>you</i>"]
    again = client.edit_message_text("Bye", chat_id=7, message_id=sent.message_id, reply_markup=buttons("Yes"))
    await expect_refusal(again, "message is not modified: specified new message content")

    await client.delete_message(7, sent.message_id)
    assert chat.messages[-1].deleted
    gone = client.edit_message_text("Hello?", chat_id=7, message_id=sent.message_id)
    await expect_refusal(gone, "message to edit not found")


@on_stage
async def test_telegram_refuses_what_no_message_may_contain(stage: Stage) -> None:
    def send(text: str, **more: Any) -> Awaitable[object]:
        return stage.client.send_message(7, text, **{"parse_mode": ParseMode.HTML, **more})

    await expect_refusal(send("<p>Hi</p>"), 'can\'t parse entities: Unsupported start tag "p" at byte offset 0')
    await expect_refusal(send("é<b>Hi"), "can't parse entities: Can't find end tag corresponding to start tag \"b\"")
    await expect_refusal(send("é<b>Hi</i>"), 'Unmatched end tag at byte offset 7, expected "</b>", found "</i>"')
    await expect_refusal(send("1 < 2"), 'Unsupported start tag "" at byte offset 2')
    await expect_refusal(send(" <b> </b>"), "message text is empty")
    await expect_refusal(send("x" * 4097), "message is too long")
    await send("<b>" + "x" * 4096 + "</b>")
    photo = BufferedInputFile(SAMPLES["image/png"], "photo.png")
    await expect_refusal(stage.client.send_photo(7, photo, caption="x" * 1025), "message caption is too long")
    await expect_refusal(send("Choose", reply_markup=buttons("é" * 33)), "BUTTON_DATA_INVALID")
    await expect_refusal(stage.client.send_message(8, "Hi"), "chat not found")


@on_stage
async def test_only_one_poller_gets_updates(stage: Stage) -> None:
    first = asyncio.create_task(stage.client.get_updates(offset=-1, limit=1, timeout=5))
    (update,) = await first
    assert update.message is not None
    assert update.message.text == "/start promo"
    assert update.message.entities is not None
    assert update.message.entities[0].type == "bot_command"

    earlier = asyncio.create_task(stage.client.get_updates(offset=update.update_id + 1, timeout=30))
    await stage.server.wait_for(lambda: stage.account.poll)
    later = asyncio.create_task(stage.client.get_updates(offset=update.update_id + 1, timeout=30))
    await expect_refusal(earlier, "terminated by other getUpdates request", TelegramConflictError)
    stage.ana.say(stage.account, "Hello")
    (update,) = await later
    assert update.message is not None
    assert update.message.text == "Hello"

    await stage.client.set_webhook("https://example.org/hook")
    await expect_refusal(stage.client.get_updates(), "while webhook is active", TelegramConflictError)


@on_stage
async def test_polled_updates_repeat_once_and_lose_their_order_on_demand(stage: Stage) -> None:
    stage.server.duplicate = stage.server.shuffle = True
    for number in range(9):
        stage.ana.say(stage.account, str(number))
    received: list[int] = []
    while batch := await stage.client.get_updates(offset=received[-1] + 1 if received else None, limit=4):
        received += [update.update_id for update in batch]
    assert sorted(received) == sorted(2 * sorted(set(received)))
    assert len(set(received)) == 10
    assert received[:4] != sorted(received[:4])


@on_stage
async def test_a_webhook_gets_every_update_with_its_secret_until_it_accepts(stage: Stage) -> None:
    async with receiver() as (url, received, statuses):
        statuses += [500, 503]
        await stage.client.set_webhook(url, secret_token=SECRET)
        stage.ana.say(stage.account, "Hello")
        await stage.server.wait_for(lambda: not stage.account.queue.pending)
        texts = [body["message"]["text"] for _, body in received]
        assert texts == ["/start promo"] * 3 + ["Hello"]
        assert {secret for secret, _ in received} == {SECRET}
        info = await stage.client.get_webhook_info()
        assert (info.pending_update_count, info.last_error_message) == (
            0,
            "Wrong response from the webhook: 503 Service Unavailable",
        )
        # The bot may call a method in its answer.
        assert stage.chat.last.text == "Got it"


@on_stage
async def test_a_duplicate_reaches_the_other_instance_behind_the_webhook(stage: Stage) -> None:
    async with receiver() as (url, first, _), receiver() as (other_url, second, _):
        stage.server.webhook_targets = [url, other_url]
        stage.server.duplicate = True
        await stage.client.set_webhook(url, secret_token=SECRET)
        stage.ana.say(stage.account, "Hello")
        await stage.server.wait_for(lambda: not stage.account.queue.pending)
        ids = [body["update_id"] for _, body in first]
        assert len(set(ids)) == 2
        assert ids == [body["update_id"] for _, body in second]


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[str, list[tuple[str | None, Any]], list[int]]]:
    """A webhook: its URL, what it received, and the errors to answer with first."""
    received: list[tuple[str | None, Any]] = []
    statuses: list[int] = []

    async def receive(request: web.Request) -> web.Response:
        received.append((request.headers.get("X-Telegram-Bot-Api-Secret-Token"), await request.json()))
        if statuses:
            return web.Response(status=statuses.pop(0))
        return web.json_response({"method": "sendMessage", "chat_id": 7, "text": "Got it"})

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook", received, statuses
    finally:
        await runner.cleanup()


@on_stage
async def test_a_bot_learns_who_does_not_want_it(stage: Stage) -> None:
    server, ana, account = stage.server, stage.ana, stage.account
    group = server.group(GROUP_ID, "Desk")
    group.add_bot(account)
    boris = server.user(9, "Boris")
    boris.say(group, "Hello all")

    ana.block(account)
    await expect_refusal(
        stage.client.send_message(7, "Hi"), "Forbidden: bot was blocked by the user", TelegramForbiddenError
    )
    ana.start(account)
    await stage.client.send_message(7, "Hi again")
    await expect_refusal(
        stage.client.send_message(9, "Hi"), "bot can't initiate conversation with a user", TelegramForbiddenError
    )
    group.remove_bot(account)
    await expect_refusal(
        stage.client.send_message(GROUP_ID, "Hi"),
        "Forbidden: bot was kicked from the supergroup chat",
        TelegramForbiddenError,
    )
    updates = await stage.client.get_updates()
    changes = [update.my_chat_member.new_chat_member.status for update in updates if update.my_chat_member]
    assert changes == ["administrator", "kicked", "member", "kicked"]
    async with client_of(server, "4242:wrong") as stranger:
        await expect_refusal(stranger.get_me(), "Unauthorized", TelegramUnauthorizedError)


@on_stage
async def test_a_bot_that_floods_a_chat_has_to_wait(stage: Stage) -> None:
    stage.server.flood_limits = FloodLimits(chat_per_minute=2)
    for text in ("One", "Two"):
        await stage.client.send_message(7, text)
    with pytest.raises(TelegramRetryAfter) as caught:
        await stage.client.send_message(7, "Three")
    assert 1 <= caught.value.retry_after <= 60
    assert stage.chat.texts[-1] == "Two"


@on_stage
async def test_ordered_faults_hit_only_the_calls_they_name(stage: Stage) -> None:
    server, client = stage.server, stage.client
    server.fail_next("sendMessage", 429, "Too Many Requests: retry after 3", retry_after=3, chat=stage.chat)
    await client.send_chat_action(7, "typing")
    with pytest.raises(TelegramRetryAfter, match="retry after 3"):
        await client.send_message(7, "Hi")
    await client.send_message(7, "Hi")
    server.drop_next("sendMessage")
    with pytest.raises(TelegramNetworkError):
        await client.send_message(7, "Sent without an answer")
    assert stage.chat.last.text == "Sent without an answer"

    with server.hold("sendMessage") as held:
        sending = asyncio.create_task(client.send_message(7, "Held"))
        await server.wait_for(lambda: held.waiting)
        assert stage.chat.last.text == "Sent without an answer"
    await sending
    assert stage.chat.last.text == "Held"
    assert [call.status for call in server.calls_of("sendMessage")] == [429, 200, 200, 200]


@on_stage
async def test_a_bot_downloads_the_bytes_that_a_person_sent(stage: Stage) -> None:
    photo = SAMPLES["image/jpeg"]
    stage.ana.send_photo(stage.account, photo, caption="My receipt", media_group_id="album")
    stage.ana.send_photo(stage.account, photo)
    stage.ana.send_document(stage.account, SAMPLES["application/pdf"])
    *_, first, second, third = [update.message for update in await stage.client.get_updates()]
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.photo
    assert second.photo
    assert third.document
    assert (first.caption, first.media_group_id) == ("My receipt", "album")
    assert first.photo[-1].file_unique_id == second.photo[-1].file_unique_id
    assert first.photo[-1].file_id != second.photo[-1].file_id
    for file_id, content in ((first.photo[-1].file_id, photo), (third.document.file_id, SAMPLES["application/pdf"])):
        file = await stage.client.download(file_id)
        assert file is not None
        assert file.read() == content

    known = await stage.client.get_file(third.document.file_id)
    assert known.file_path
    stage.server.file_path_seconds = 0
    with pytest.raises(Exception, match="404"):
        await stage.client.download_file(known.file_path, BytesIO())

    await stage.client.send_photo(7, BufferedInputFile(photo, "photo.jpg"), caption="Back to you")
    assert (stage.chat.last.photo, stage.chat.last.caption) == (photo, "Back to you")
    await stage.client.edit_message_caption(chat_id=7, message_id=stage.chat.last.id, caption="Thanks")
    assert stage.chat.last.caption == "Thanks"


@on_stage
async def test_a_person_presses_buttons_and_shares_a_contact(stage: Stage) -> None:
    client, ana = stage.client, stage.ana
    await client.send_message(7, "Sure?", reply_markup=buttons("Yes", "No"))
    message = stage.chat.last
    pressed = ana.press(message, "Yes")
    with pytest.raises(AssertionError, match="no button 'Maybe'"):
        ana.press(message, "Maybe")
    update = (await client.get_updates())[-1]
    assert update.callback_query is not None
    assert (update.callback_query.data, update.callback_query.from_user.id) == ("yes", 7)
    await client.answer_callback_query(update.callback_query.id, text="Done")
    assert (pressed.answered, pressed.answer_text) == (True, "Done")
    await expect_refusal(client.answer_callback_query(update.callback_query.id), "query is too old")

    keyboard = [[KeyboardButton(text="Share my number", request_contact=True)]]
    await client.send_message(7, "Your number?", reply_markup=ReplyKeyboardMarkup(keyboard=keyboard))
    ana.share_contact(stage.account, "+34600000000")
    update = (await client.get_updates())[-1]
    assert update.message is not None
    assert update.message.contact is not None
    assert (update.message.contact.user_id, update.message.contact.phone_number) == (7, "+34600000000")

    link = InlineKeyboardButton(text="Open", url="https://t.me/holdfast_bot?start=shift_1")
    await client.send_message(7, "Go", reply_markup=InlineKeyboardMarkup(inline_keyboard=[[link]]))
    assert ana.open(stage.chat.last, "Open").text == "/start shift_1"


@on_stage
async def test_groups_and_channels_look_real_to_a_client(stage: Stage) -> None:
    group, channel = stage.server.group(GROUP_ID, "Desk"), stage.server.channel(CHANNEL_ID, "News", username="news")
    group.add_bot(stage.account, "member")
    channel.add_bot(stage.account)
    group.add_user(stage.ana, "administrator")
    stage.ana.say(group, "Just talking")
    stage.ana.say(group, "/help")
    channel.post("Doors open at 8")
    updates = await stage.client.get_updates()
    assert [update.message.text for update in updates if update.message] == ["/start promo", "/help"]
    assert [update.channel_post.text for update in updates if update.channel_post] == ["Doors open at 8"]
    assert (await stage.client.get_chat_member(GROUP_ID, 7)).status == "administrator"
    assert (await stage.client.get_chat("@news")).title == "News"
    posted = await stage.client.send_message("@news", "Sold out")
    await stage.client.edit_message_text("Sold out!", chat_id=CHANNEL_ID, message_id=posted.message_id)
    await channel.wait_for_text("Sold out!")


def test_the_server_runs_in_a_thread_and_tells_what_happened_instead() -> None:
    with running_telegram_server() as server:
        account = server.add_bot(TOKEN, "holdfast_bot")
        ana = server.user(7, "Ana")
        ana.start(account)

        async def greet() -> None:
            async with client_of(server) as client:
                (update,) = await client.get_updates(timeout=5)
                assert update.message is not None
                await client.send_message(update.message.chat.id, "Welcome")

        asyncio.run(greet())
        server.wait_until(lambda: ana.chat(account).last.text == "Welcome")
        with pytest.raises(AssertionError, match="@holdfast_bot: 'Welcome'"):
            server.wait_until(lambda: ana.chat(account).last.text == "Goodbye", seconds=0.01)
