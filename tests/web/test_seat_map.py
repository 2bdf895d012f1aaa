"""The seat map in a real browser: mouse, touch, keyboard and list, and fast with 20,000 seats."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

import holdfast
from tests.support.browser import chromium

FOLDERS = {"static": Path(holdfast.__file__).parent / "web" / "static", "pages": Path(__file__).parent / "pages"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'"
PAINT_MS_MAX = 1500
TASK_MS_MAX = 200
ATTEMPTS = 4
PHONE = {"width": 390, "height": 844}

OpenPage = Callable[[str], Page]


class FileHandler(SimpleHTTPRequestHandler):
    """Serves the map's files and the page of this test, under the policy of the real pages."""

    def translate_path(self, path: str) -> str:
        folder, _, name = path.partition("?")[0].strip("/").partition("/")
        return str(FOLDERS.get(folder, Path("nowhere")) / name)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep the test output clean."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FileHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/pages/seatmap.html"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def page_opener(browser: Browser, address: str, **options: Any) -> Iterator[OpenPage]:
    """Open pages that fail the test on script errors and in which the camera moves without animation."""
    context: BrowserContext = browser.new_context(**{"reduced_motion": "reduce", **options})
    context.set_default_timeout(30_000)
    errors: list[str] = []
    context.on("weberror", lambda error: errors.append(str(error.error)))
    context.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)

    def open_page(hall: str) -> Page:
        page = context.new_page()
        page.goto(f"{address}?hall={hall}")
        page.wait_for_function("() => performance.getEntriesByName('seatmap:painted').length")
        # By the second frame the map has adapted to its window.
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page

    yield open_page
    context.close()
    assert errors == []


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[OpenPage]:
    with page_opener(browser, address) as open_page:
        yield open_page


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A workshop with rows A1 to A5 of eight seats each."""
    return open_page("small")


@pytest.fixture
def open_in_low_window(browser: Browser, address: str) -> Iterator[OpenPage]:
    """Opens a window in which the page must be scrolled."""
    with page_opener(browser, address, viewport={"width": 1000, "height": 500}) as open_page:
        yield open_page


@pytest.fixture
def open_on_phone(browser: Browser, address: str) -> Iterator[OpenPage]:
    with page_opener(
        browser, address, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2
    ) as open_page:
        yield open_page


def seat_position(page: Page, label: str) -> tuple[float, float]:
    """The position of a seat on the screen."""
    box = page.locator(".seatmap-frame").bounding_box()
    assert box is not None
    at = page.evaluate("label => map.position(label)", label)
    return box["x"] + at["x"], box["y"] + at["y"]


def click_seat(page: Page, label: str) -> None:
    page.mouse.click(*seat_position(page, label))


def selected_seats(page: Page) -> Any:
    return page.evaluate("map.selected")


def events(page: Page, name: str) -> Any:
    """The events of this name that the map fired, without the name."""
    return page.evaluate("name => events.filter(event => event.name === name).map(({name, ...rest}) => rest)", name)


def announcement(page: Page) -> str:
    return page.locator(".seatmap > [role=status]").inner_text()


def seat_pitch(page: Page) -> float:
    return float(page.evaluate("map.position('S1-26').x - map.position('S1-25').x"))


def test_a_click_selects_a_seat_and_another_click_deselects_it(page: Page) -> None:
    click_seat(page, "A2-3")
    click_seat(page, "A1-8")
    assert selected_seats(page) == ["A2-3", "A1-8"]
    click_seat(page, "A2-3")
    assert selected_seats(page) == ["A1-8"]
    assert events(page, "change") == [
        {"selected": ["A2-3"]},
        {"selected": ["A2-3", "A1-8"]},
        {"selected": ["A1-8"]},
    ]
    click_seat(page, "A1-8")
    assert selected_seats(page) == []


def test_a_seat_that_is_not_free_is_refused_with_its_state(page: Page) -> None:
    for state in ("held", "sold", "blocked"):
        page.evaluate("state => map.reset({'A1-1': state, 'nowhere': 'sold'})", state)
        click_seat(page, "A1-1")
        assert selected_seats(page) == []
        assert events(page, "refused")[-1] == {"label": "A1-1", "state": state, "reason": "taken"}
        assert "This seat cannot be chosen." in announcement(page)
    page.evaluate("map.reset({})")
    click_seat(page, "A1-1")
    assert selected_seats(page) == ["A1-1"]


def test_no_more_seats_can_be_chosen_than_allowed(page: Page) -> None:
    page.evaluate("map.max = 2")
    for label in ("A1-1", "A1-2", "A1-3"):
        click_seat(page, label)
    assert selected_seats(page) == ["A1-1", "A1-2"]
    assert events(page, "refused") == [{"label": "A1-3", "state": "free", "reason": "limit"}]
    assert announcement(page) == "You can choose up to 2 seats."


def test_a_chosen_seat_that_somebody_else_takes_is_deselected_with_a_message(page: Page) -> None:
    page.evaluate("['A1-1', 'A1-2', 'A1-3'].forEach(label => map.select(label, true))")
    page.evaluate("map.apply({'A1-2': 'held', 'A4-4': 'sold'})")
    assert events(page, "lost") == [{"labels": ["A1-2"]}]
    assert events(page, "change")[-1] == {"selected": ["A1-1", "A1-3"]}
    page.evaluate("map.reset({'A1-1': 'sold'})")
    assert events(page, "lost")[-1] == {"labels": ["A1-1"]}
    page.evaluate("map.apply({'A1-2': 'free'})")
    assert selected_seats(page) == ["A1-3"]


def test_seats_held_by_this_buyer_are_shown_as_theirs(page: Page) -> None:
    page.evaluate("map.markMine(['A1-1', 'A1-2'])")
    page.evaluate("map.apply({'A1-1': 'held', 'A1-2': 'held'})")
    assert selected_seats(page) == []
    assert events(page, "lost") == []
    assert page.evaluate("map.state('A1-1')") == "mine"
    click_seat(page, "A1-1")
    assert events(page, "refused") == [{"label": "A1-1", "state": "mine", "reason": "taken"}]
    page.evaluate("map.markMine([])")
    assert page.evaluate("[map.state('A1-1'), map.state('A1-3'), map.state('nowhere')]") == ["held", "free", None]


def test_seats_can_be_chosen_with_the_keyboard_and_are_announced(page: Page) -> None:
    page.evaluate("map.reset({'A2-5': 'sold'})")
    for _ in range(5):
        page.keyboard.press("Tab")
    frame = page.get_by_role("application", name="Seat map")
    expect(frame).to_be_focused()
    assert frame.evaluate("it => getComputedStyle(it, '::after').borderTopWidth") == "3px"
    page.keyboard.press("Home")
    assert announcement(page) == "Row A1, seat 1, Workshop, €15.00, Free"
    page.keyboard.press("Enter")
    assert announcement(page) == "Row A1, seat 1, Workshop, €15.00, Your choice"
    for key in ("ArrowDown", "End", "ArrowLeft", "Space"):
        page.keyboard.press(key)
    assert selected_seats(page) == ["A1-1", "A2-7"]
    for key in ("ArrowLeft", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    assert events(page, "refused") == [{"label": "A2-5", "state": "sold", "reason": "taken"}]
    for key in ("ArrowUp", "ArrowRight", "ArrowUp", "Enter", "Enter"):
        page.keyboard.press(key)
    assert announcement(page) == "Row A1, seat 6, Workshop, €15.00, Free"
    assert selected_seats(page) == ["A1-1", "A2-7"]


def test_keys_zoom_to_the_focused_seat_and_back(open_page: OpenPage) -> None:
    page = open_page("curved")
    initial = seat_pitch(page)
    page.locator(".seatmap-frame").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert seat_pitch(page) > 2 * initial
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert seat_pitch(page) == initial
    for _ in range(60):
        page.keyboard.press("ArrowDown")
    assert announcement(page).startswith("Row G8, ")


def test_the_list_shows_the_seats_of_open_rows(open_page: OpenPage) -> None:
    page = open_page("large")
    page.evaluate("map.apply({'A3-2': 'sold'}); map.select('A3-4', true)")
    page.get_by_role("button", name="Show as list").click()
    seats = page.locator(".seatmap-list").get_by_role("checkbox")
    page.locator("summary").filter(has_text="Lower tier").click()
    page.locator("summary").filter(has_text="Row A3").first.click()
    row = page.locator("summary").filter(has_text="Row A3").first
    expect(row).to_contain_text("Row A3: A3-1")
    expect(seats).to_have_count(120)
    expect(seats.nth(1)).to_be_disabled()
    expect(seats.nth(3)).to_be_checked()
    seats.nth(0).check()
    seats.nth(3).uncheck()
    assert selected_seats(page) == ["A3-1"]
    page.evaluate("map.apply({'A3-1': 'held', 'A3-2': 'free'})")
    expect(page.get_by_role("checkbox", name="Row A3, seat 1, Lower tier, €80.00, Being bought")).to_be_disabled()
    expect(seats.nth(1)).to_be_enabled()
    expect(row).to_contain_text("119 free")
    page.evaluate("map.max = 0")
    seats.nth(1).click()
    expect(seats.nth(1)).not_to_be_checked()
    row.click()
    expect(page.locator(".seatmap-list input")).to_have_count(0)
    page.get_by_role("button", name="Show as map").click()
    expect(page.locator(".seatmap-frame")).to_be_visible()


def test_a_tap_on_small_seats_zooms_in_before_it_selects(open_on_phone: OpenPage) -> None:
    page = open_on_phone("curved")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert seat_pitch(page) < 24
    page.touchscreen.tap(*seat_position(page, "D4-20"))
    assert selected_seats(page) == []
    assert seat_pitch(page) > 24
    page.wait_for_timeout(400)
    page.touchscreen.tap(*seat_position(page, "D4-20"))
    assert selected_seats(page) == ["D4-20"]


def test_two_fingers_zoom_and_one_finger_pans(open_on_phone: OpenPage) -> None:
    page = open_on_phone("curved")
    initial = seat_pitch(page)
    x, y = seat_position(page, "S10-25")
    touches = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": point[0], "y": point[1], "id": index} for index, point in enumerate(points)]
        touches.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    touch("touchStart", (x - 20, y), (x + 20, y))
    for spread in range(24, 100, 4):
        touch("touchMove", (x - spread, y), (x + spread, y))
    touch("touchEnd")
    assert seat_pitch(page) > 3 * initial
    before = page.evaluate("map.position('S10-25')")
    touch("touchStart", (x, y))
    for step in range(10, 90, 10):
        touch("touchMove", (x - step, y - step / 2))
    touch("touchEnd")
    after = page.evaluate("map.position('S10-25')")
    assert after["x"] < before["x"] - 40
    assert after["y"] < before["y"] - 20
    assert selected_seats(page) == []


def test_the_wheel_scrolls_the_page_and_with_control_zooms_the_map(open_in_low_window: OpenPage) -> None:
    page = open_in_low_window("curved")
    initial = seat_pitch(page)
    page.mouse.move(500, 300)
    page.mouse.wheel(0, 50)
    page.wait_for_function("() => scrollY > 0")
    page.mouse.wheel(0, -50)
    page.wait_for_function("() => scrollY === 0")
    assert seat_pitch(page) == initial
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function("initial => map.position('S1-26').x - map.position('S1-25').x > initial", arg=initial)


def test_nearby_free_seats_are_adjacent_and_in_the_same_pool(open_page: OpenPage) -> None:
    page = open_page("curved")

    def nearby(label: str, count: int) -> Any:
        return page.evaluate("([label, count]) => map.nearby(label, count)", [label, count])

    page.evaluate("map.apply({'S5-10': 'sold', 'S5-11': 'sold', 'S5-9': 'held'})")
    assert set(nearby("S5-10", 1)) <= {"S4-10", "S6-10"}
    pair = nearby("S5-10", 2)
    assert {label.split("-")[0] for label in pair} <= {"S4", "S6"}
    assert abs(int(pair[0].split("-")[1]) - int(pair[1].split("-")[1])) == 1
    page.evaluate("map.select('S4-10', true); map.select('S6-10', true)")
    assert not {"S4-10", "S6-10", "S5-9", "S5-10", "S5-11"} & set(nearby("S5-10", 30))
    # Only every second seat of the pool is left: single seats then, and other pools only once the pool has none.
    page.evaluate("""map.reset(Object.fromEntries(layout.seats
        .filter(([label, pool, , number]) => pool === 0 && number % 2).map(([label]) => [label, "sold"])))""")
    assert all(label.startswith("S") for label in nearby("S5-10", 3))
    everything = nearby("S5-10", 600)
    assert [label[0] for label in everything[:497]] == ["S"] * 497
    assert {label[0] for label in everything[497:]} == {"D"}
    assert nearby("nowhere", 3) == []


def test_seats_without_coordinates_are_laid_out_in_rows_and_blocks(open_page: OpenPage) -> None:
    page = open_page("grid")
    positions = page.evaluate("Object.fromEntries(layout.seats.map(([label]) => [label, map.position(label)]))")
    assert len({(round(at["x"]), round(at["y"])) for at in positions.values()}) == 5000
    assert positions["A1-1"]["y"] == positions["A1-50"]["y"] < positions["A2-1"]["y"] < positions["C1-1"]["y"]
    assert positions["A1-50"]["x"] < positions["B1-1"]["x"]
    page = open_page("loose")
    positions = page.evaluate("layout.seats.map(([label]) => map.position(label))")
    assert len({(round(at["x"]), round(at["y"])) for at in positions}) == 300


PIXELS = """label => {
  const canvas = document.querySelector(".seatmap-frame canvas");
  const [ratio, at] = [devicePixelRatio, map.position(label)];
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const offset = (Math.round(at.y * ratio) * canvas.width + Math.round(at.x * ratio)) * 4;
  const checksum = all.reduce((sum, part, index) => (sum + part * (index % 8191)) % 9007199, 0);
  return [checksum, ...all.slice(offset, offset + 3)];
}"""
FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_a_seat_that_changes_state_looks_as_after_a_full_redraw(open_page: OpenPage) -> None:
    page = open_page("curved")
    images = []
    for state in ("free", "held", "sold", "blocked"):
        page.evaluate("state => map.apply({'S9-9': state, 'D2-2': state})", state)
        page.evaluate(FRAME)
        images.append(page.evaluate(PIXELS, "S9-9"))
        page.evaluate("map.restyle()")
        page.evaluate(FRAME)
        assert page.evaluate(PIXELS, "S9-9") == images[-1]
    assert len({tuple(pixels) for pixels in images}) == 4
    page.evaluate("map.reset({})")
    page.evaluate(FRAME)
    assert page.evaluate(PIXELS, "S9-9") == images[0]
    assert images[0][1:] == [0x2F, 0x62, 0xC4]


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const style = getComputedStyle(document.getElementById("map"));
  const luminance = name => {
    canvas.fillStyle = style.getPropertyValue(`--seat-${name}`);
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
      .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  };
  const under = luminance("background");
  const names = ["text", ...[1, 2, 3, 4, 5, 6].map(tone => `free-${tone}`), "selected", "mine", "held", "sold"];
  return Object.fromEntries(names.map(luminance).map((over, index) =>
    [names[index], (Math.max(under, over) + 0.05) / (Math.min(under, over) + 0.05)]));
}"""
CORNER = "() => [...document.querySelector('.seatmap-frame canvas').getContext('2d').getImageData(2, 2, 1, 1).data]"


def test_colours_differ_from_the_background_and_follow_the_system(page: Page) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        least = {name: 4.5 if name.startswith(("text", "free")) else 3 for name in contrasts}
        assert {name: ratio for name, ratio in contrasts.items() if ratio < least[name]} == {}
        page.wait_for_timeout(100)
        backgrounds.append(page.evaluate(CORNER))
    assert backgrounds == [[255, 255, 255, 255], [25, 32, 40, 255]]


def test_the_map_and_the_list_have_no_accessibility_violations(page: Page) -> None:
    page.evaluate(
        "map.reset({'A1-1': 'sold', 'A1-2': 'held', 'A1-3': 'blocked'}); map.markMine(['A2-1']); map.select('A3-1')"
    )
    found = find_violations(page)
    page.get_by_role("button", name="Show as list").click()
    page.locator("summary").first.click()
    page.locator("summary").filter(has_text="Row A1").click()
    expect(page.get_by_role("checkbox")).to_have_count(8)
    assert found + find_violations(page) == []


def find_violations(page: Page) -> list[str]:
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += [f"{one['id']} ({one['impact']})" for one in Axe().run(page).response["violations"]]
    return found


def test_the_layout_does_not_shift_when_the_map_appears(open_page: OpenPage) -> None:
    page = open_page("curved")
    shift = """() => new Promise(done => {
      const add = list => done(list.getEntries().reduce((sum, entry) => sum + entry.value, 0));
      new PerformanceObserver(add).observe({type: "layout-shift", buffered: true});
      setTimeout(() => done(0), 300);
    })"""
    assert page.evaluate(shift) == 0


def test_a_missing_text_is_an_error(page: Page) -> None:
    assert page.evaluate("TEXT_KEYS.toSorted().join() === Object.keys(TEXTS).toSorted().join()")
    construct = "new SeatMap(document.createElement('div'), layout, {...TEXTS, legend: undefined})"
    assert (
        page.evaluate(f"() => {{ try {{ {construct} }} catch (error) {{ return error.message; }} }}")
        == "no text for legend"
    )


CHANGES = """() => {
  window.tasks = [];
  const keep = list => tasks.push(...list.getEntries().map(task => task.duration));
  new PerformanceObserver(keep).observe({type: "longtask"});
  window.applied = 0;
  setInterval(() => {
    const change = {};
    for (let at = 0; at < 10; at += 1) {
      const [label] = layout.seats[(applied * 7919) % layout.seats.length];
      change[label] = ["held", "sold", "free"][applied % 3];
      applied += 1;
    }
    map.apply(change);
  }, 50);
}"""


def test_a_map_of_20000_seats_paints_fast_and_pans_smoothly_while_200_seats_change_each_second(
    browser: Browser, address: str
) -> None:
    """Other processes may block the processor for longer than the limits, so the best of a few attempts counts."""
    for _ in range(ATTEMPTS):
        paint_ms, task_ms = measure(browser, address)
        if paint_ms < PAINT_MS_MAX and task_ms < TASK_MS_MAX:
            return
    assert paint_ms < PAINT_MS_MAX
    assert task_ms < TASK_MS_MAX


def measure(browser: Browser, address: str) -> tuple[float, float]:
    """Milliseconds from the data to the first paint, and of the longest task while zooming and panning."""
    with page_opener(
        browser, address, reduced_motion="no-preference", viewport={"width": 1280, "height": 800}
    ) as open_page:
        page = open_page("large")
        marks = "['data', 'seatmap:painted'].map(name => performance.getEntriesByName(name)[0].startTime)"
        data, painted = page.evaluate(marks)
        page.evaluate(CHANGES)
        x, y = seat_position(page, "A25-100")
        page.mouse.move(x, y)
        page.locator(".seatmap-frame").focus()
        for _ in range(3):
            page.mouse.wheel(0, -120)
            drag(page, x, y)
        for _ in range(8):
            page.mouse.wheel(0, 120)
            page.wait_for_timeout(20)
        tasks, applied = page.evaluate("[tasks, applied]")
    task_ms = max(tasks, default=0)
    print(f"painted after {painted - data:.0f} ms; longest task {task_ms:.0f} ms; {len(tasks)} tasks over 50 ms")
    assert applied > 100
    return painted - data, task_ms


def drag(page: Page, x: float, y: float) -> None:
    page.mouse.down()
    for step in range(20):
        page.mouse.move(x + step * 8, y + step * 4)
    page.mouse.up()
    page.mouse.move(x, y)
