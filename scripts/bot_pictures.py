"""Take the pictures of the Telegram bot in `docs/screenshots/`, while the agency of the demo works. `make bot-pictures`
runs this. It takes two minutes, because Telegram's limits for groups apply."""

import io
import re
import sys
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, Page
from tests.support.browser import chromium
from tests.support.telegram.simulator import draw_receipt
from tests.support.telegram_server import Chat, Message, PrivateChat, User

from scripts.bot_demo import Demo, DemoError, running_demo

FOLDER: Final = Path(__file__).parent.parent / "docs" / "screenshots"
TIMEZONE: Final = "Europe/Madrid"
WIDTH: Final = 420
HEIGHT_MIN: Final = 480
COLOURS: Final = 256
# What Olga answers to each question of the form. She taps the button for tomorrow, and skips what is None.
TOMORROW: Final = ""
SHIFT: Final = {
    "What's the order number": "1204",
    "Which day is the shift": TOMORROW,
    "From when to when": "08:00-17:00",
    "Where is it": "Dock 4, Harbour Road",
    "What do workers earn": "15 € an hour",
    "How much does a place cost": "7.50",
    "How many workers": "3",
    "Is there food": "Free lunch",
    "Which buses": "12, 48",
    "What else": "Bring gloves and warm clothes.",
    "How do workers pay": None,
}
REFERENCE: Final = re.compile(r"\b[0-9A-F]{10}\b")
# The tools of the simulator are no part of Telegram.
WITHOUT_TOOLS: Final = "#block, #receipt, .toast { display: none !important; }"
# The height of a chat that begins with this message.
HEIGHT_OF_CHAT: Final = """first => {
    const find = selector => document.querySelector(selector)
    const top = find(`#log > :nth-child(${first})`).getBoundingClientRect().top
    const bottom = find("#log > :last-child").getBoundingClientRect().bottom
    return find("header").offsetHeight + find("footer").offsetHeight + bottom - top + 26
}"""
PICTURES_LOADED: Final = "[...document.images].every(image => image.complete)"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    try:
        with running_demo(timezone=TIMEZONE) as demo, chromium() as browser:
            tell_story(demo, Camera(demo, browser))
    except DemoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def tell_story(demo: Demo, camera: "Camera") -> None:
    """Olga publishes two shifts. Ivan gets a place in the first one, and Dilnoza waits for her receipt's review."""
    preview = fill_in_form(demo)
    camera.take("form", demo.olga, demo.staff, last=preview, count=3)
    post = publish(demo, preview)
    copy_shift(demo)

    offer = register(demo, demo.ivan, post, "+34 600 111 222")
    demo.ivan.press(offer, offer.buttons[0])
    card = demo.wait_for(demo.chat_of(demo.ivan), "A place is yours for")
    camera.take("hold", demo.ivan, demo.chat_of(demo.ivan), last=card, count=2)
    review = send_receipt(demo, demo.ivan, card)
    demo.olga.press(review, "Approve")
    confirmed = demo.wait_for(demo.chat_of(demo.ivan), "You're in!")
    demo.server.wait_until(lambda: "You have this shift" in card.body.text)
    camera.take("worker", demo.ivan, demo.chat_of(demo.ivan), last=confirmed, count=4)
    demo.server.wait_until(lambda: "2 of 3 places left" in post.body.text)
    camera.take("post", demo.ivan, demo.channel, last=demo.channel.last, count=2)

    offer = register(demo, demo.dilnoza, post, "+34 600 333 444")
    demo.dilnoza.press(offer, offer.buttons[0])
    card = wait_for_next(demo, demo.dilnoza, offer)
    camera.take("review", demo.olga, demo.staff, last=send_receipt(demo, demo.dilnoza, card), count=2)


def fill_in_form(demo: Demo) -> Message:
    """Go through the form in the admin chat. Returns the preview."""
    question = demo.olga.say(demo.staff, "/new")
    for text, answer in SHIFT.items():
        question = demo.wait_for(demo.staff, text, after=question)
        if answer is None:
            demo.olga.press(question, "Skip")
        elif answer == TOMORROW:
            demo.olga.press(question, question.buttons[1])
        else:
            question = demo.olga.say(demo.staff, answer)
    return demo.wait_for(demo.staff, "This is what workers will see", after=question)


def publish(demo: Demo, preview: Message) -> Message:
    """Returns the post in the channel."""
    earlier = demo.channel.visible
    demo.olga.press(preview, "Publish")
    demo.wait_for(demo.staff, "Published", after=preview)
    return demo.wait_for(demo.channel, "places left", after=earlier[-1] if earlier else None)


def copy_shift(demo: Demo) -> None:
    """The same shift once more, on the day after."""
    begin = demo.wait_for(demo.staff, "Copy an earlier shift", after=demo.olga.say(demo.staff, "/new"))
    demo.olga.press(begin, begin.buttons[0])
    days = demo.wait_for(demo.staff, "Which day is the shift", after=begin)
    demo.olga.press(days, days.buttons[2])
    publish(demo, demo.wait_for(demo.staff, "This is what workers will see", after=days))


def register(demo: Demo, worker: User, post: Message, phone: str) -> Message:
    """Come from the channel and answer the bot's questions, in whichever language. Returns the offer."""
    asked = worker.open(post, "Take a place")
    welcome = wait_for_next(demo, worker, asked)
    consent = wait_for_next(demo, worker, welcome)
    worker.press(consent, consent.buttons[0])
    wait_for_next(demo, worker, consent)
    wait_for_next(demo, worker, worker.say(demo.account, worker.name))
    shared = worker.share_contact(demo.account, phone)
    return wait_for_next(demo, worker, wait_for_next(demo, worker, shared))


def wait_for_next(demo: Demo, worker: User, after: Message) -> Message:
    """The bot's first message after this one. It may have sent several."""
    chat = demo.chat_of(worker)
    demo.wait_for(chat, "", after=after)
    return next(message for message in chat.visible if message.author and message.id > after.id)


def send_receipt(demo: Demo, worker: User, card: Message) -> Message:
    """Returns the review in the admin chat."""
    found = REFERENCE.search(card.body.text)
    assert found is not None, card
    receipt = draw_receipt(worker.name, reference=found[0])
    last = demo.staff.last
    sent = worker.send_photo(demo.account, receipt)
    wait_for_next(demo, worker, sent)
    return demo.wait_for(demo.staff, "Receipt for", after=last)


class Camera:
    def __init__(self, demo: Demo, browser: Browser) -> None:
        self._demo = demo
        self._browser = browser

    def take(self, name: str, person: User, chat: Chat, last: Message, count: int) -> None:
        """A picture of the last messages of a chat, as this person sees it on a phone."""
        context = self._browser.new_context(
            viewport={"width": WIDTH, "height": 800},
            device_scale_factor=2,
            locale="en-GB",
            timezone_id=TIMEZONE,
            reduced_motion="reduce",
        )
        page = context.new_page()
        key = f"bot{chat.bot.id}" if isinstance(chat, PrivateChat) else f"chat{chat.id}"
        page.goto(f"{self._demo.server.url}/#user={person.id}&chat={key}")
        page.locator(f'#log > [data-key*=":{last.id}:"]').wait_for()
        _show_last(page, count)
        save(page.locator("main").screenshot(), FOLDER / f"telegram-{name}.png")
        context.close()


def _show_last(page: Page, count: int) -> None:
    """Hide older messages, and make the screen as high as the others."""
    page.add_style_tag(content=WITHOUT_TOOLS)
    page.wait_for_function(PICTURES_LOADED)
    messages = page.locator("#log > *").count()
    first = max(1, messages - count + 1)
    height = max(HEIGHT_MIN, int(page.evaluate(HEIGHT_OF_CHAT, first)))
    page.add_style_tag(content=f"#log > :nth-child(-n+{first - 1}) {{ display: none; }}")
    page.set_viewport_size({"width": WIDTH, "height": height})


def save(screenshot: bytes, path: Path) -> None:
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
