"""A browser without JavaScript: it opens pages, reads their forms, submits them, and keeps one cookie."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from msgspec import Struct

from tests.support.harness import Server

HTML: Final = "text/html,application/xhtml+xml"
# Elements without an end tag.
VOID: Final = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
IFRAME_HEADERS: Final = {"Sec-Fetch-Dest": "iframe"}

Attributes = dict[str, str | None]


class Form(Struct):
    action: str
    id: str | None
    fields: dict[str, str]
    method: str = "get"


class Page(HTMLParser):
    """A parsed page: its text, links, forms and scripts. Parsing fails if a tag is left open. `shown_tags` leaves out
    templates, which only scripts use."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(convert_charrefs=True)
        self.response = response
        self.tags: list[tuple[str, Attributes]] = []
        self.shown_tags: list[tuple[str, Attributes]] = []
        self.forms: list[Form] = []
        self.scripts: list[tuple[Attributes, str]] = []
        self.text = ""
        self._open: list[str] = []
        self._form: Form | None = None
        self._select: str | None = None
        self._outside_fields: list[tuple[str, str, str]] = []
        self.feed(response.text)
        self.close()
        assert not self._open, f"not closed: {self._open}"
        self.text = " ".join(self.text.split())
        for owner, name, value in self._outside_fields:
            next(form for form in self.forms if form.id == owner).fields[name] = value

    @property
    def data(self) -> Any:
        """The JSON that the page embeds for its script."""
        (found,) = [text for attributes, text in self.scripts if attributes.get("id") == "page"]
        return json.loads(found)

    def form(self, ending: str) -> Form:
        """The last form whose action ends like this."""
        found = [form for form in self.forms if form.action.endswith(ending)]
        assert found, f"there is no form for {ending} in: {self.text}"
        return found[-1]

    def has_form(self, ending: str) -> bool:
        return any(form.action.endswith(ending) for form in self.forms)

    def links(self, part: str = "") -> list[str]:
        found = [attributes.get("href") or "" for tag, attributes in self.tags if tag == "a"]
        return [link for link in found if part in link]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"duplicate attribute: {attrs}"
        self.tags.append((tag, attributes))
        if "template" not in self._open:
            self.shown_tags.append((tag, attributes))
        self.text += " "
        if tag not in VOID:
            self._open.append(tag)
        name, value = attributes.get("name"), attributes.get("value") or ""
        if tag == "form":
            self._form = Form(
                attributes.get("action") or "", attributes.get("id"), {}, attributes.get("method") or "get"
            )
            self.forms.append(self._form)
        elif tag == "script":
            self.scripts.append((attributes, ""))
        elif tag == "select":
            self._select = name
        elif tag == "option":
            self._choose(attributes)
        elif tag == "input" and name is not None:
            self._fill(attributes, name, value)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        self.text += " "
        if tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._open and self._open[-1] == "option" and self._form is not None and self._select is not None:
            self._form.fields.setdefault(self._select, data)
            self.text += data
        else:
            self.text += data

    def _choose(self, attributes: Attributes) -> None:
        assert self._select is not None
        if self._form is None:
            # The page's script copies it from a template.
            return
        value = attributes.get("value")
        if "selected" in attributes:
            self._form.fields.pop(self._select, None)
        if value is not None:
            self._form.fields.setdefault(self._select, value)

    def _fill(self, attributes: Attributes, name: str, value: str) -> None:
        kind = attributes.get("type")
        is_unchecked = kind in ("checkbox", "radio") and "checked" not in attributes
        if kind == "file" or "disabled" in attributes or is_unchecked or "template" in self._open:
            return
        if attributes.get("form"):
            self._outside_fields.append((attributes["form"] or "", name, value))
        elif self._form is not None:
            self._form.fields[name] = value


@contextmanager
def new_visitor(server: Server, language: str = "en", **headers: str) -> Iterator[httpx.Client]:
    """A client without cookies."""
    all_headers = {"Accept": HTML, "Accept-Language": language, **headers}
    with httpx.Client(base_url=server.url, headers=all_headers, timeout=30, verify=False) as client:
        yield client


def get_as_new_visitor(url: str, headers: Any = None) -> httpx.Response:
    """One request without cookies."""
    return httpx.get(url, headers=headers, timeout=30, verify=False)


def get_page(client: httpx.Client, path: str, status: int = 200) -> Page:
    return parse_page(client.get(path), status)


def parse_page(response: httpx.Response, status: int = 200) -> Page:
    assert response.status_code == status, f"{response.status_code}: {response.text[:2000]}"
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return Page(response)


def submit_form(
    client: httpx.Client, form: Form, headers: dict[str, str] | None = None, /, **values: str
) -> httpx.Response:
    """Submit the form as a browser does, with these fields filled in; `__` stands for a dot in a field name."""
    filled = {**form.fields, **{name.replace("__", "."): value for name, value in values.items()}}
    return client.post(form.action, data=filled, headers={**same_origin_headers(client), **(headers or {})})


def submit_file(client: httpx.Client, form: Form, file: bytes, name: str = "receipt.png") -> httpx.Response:
    files = {"file": (name, file, "image/png")}
    return client.post(form.action, data=form.fields, files=files, headers=same_origin_headers(client))


def same_origin_headers(client: httpx.Client) -> dict[str, str]:
    """The headers a browser adds to a form of the same site."""
    return {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}


def redirect_target(response: httpx.Response) -> str:
    assert response.status_code == 303, f"{response.status_code}: {response.text[:2000]}"
    location: str = response.headers["location"]
    return location


def hold_on_page(client: httpx.Client, event: str, /, **values: str) -> str:
    """Submit the order form of the event and return the path of the booking."""
    return redirect_target(submit_form(client, get_page(client, f"/e/{event}").form("/hold"), **values))


def pay_in_sandbox(client: httpx.Client, booking: str, action: str = "pay") -> str:
    """Go through the checkout and return the path it leads back to."""
    checkout = urlsplit(redirect_target(submit_form(client, get_page(client, booking).form("/pay")))).path
    assert client.get(checkout).status_code == 200
    back = urlsplit(redirect_target(client.post(checkout, data={"action": action})))
    assert f"{back.scheme}://{back.netloc}" == str(client.base_url).rstrip("/")
    return f"{back.path}?{back.query}"
