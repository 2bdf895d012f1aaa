"""Every text exists in every language with the same placeholders, and none is unused."""

import ast
import re
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast.i18n
import holdfast.web
from holdfast.api.operations import OPERATIONS
from holdfast.api.receipt_upload import FILE_BYTES_MAX
from holdfast.core.policy import PRESETS
from holdfast.core.refusals import Refusal
from holdfast.core.states import Status
from holdfast.demo.stampede.report import StampedeProblem
from holdfast.i18n.languages import LANGUAGES
from holdfast.i18n.texts import MissingTextError, section, translate
from holdfast.notifications.emails import EmailKind
from holdfast.notifications.push_channel import PushKind
from holdfast.notifications.sms import SmsKind
from holdfast.payments.registry import make_providers
from holdfast.runtime.db import Database
from holdfast.runtime.settings import Settings
from holdfast.web.page_problems import PageProblem, refusal_text
from holdfast.web.rendering import LANGUAGE_NAMES, TONES

I18N: Final = Path(holdfast.i18n.__file__).parent
WEB: Final = Path(holdfast.web.__file__).parent
TEMPLATES: Final = sorted((WEB / "templates").rglob("*.html"))
SCRIPTS: Final = sorted((WEB / "static").glob("*.js"))
TEXTS: Final = {language: tomllib.loads((I18N / f"{language}.toml").read_text()) for language in LANGUAGES}
PAGE: Final = section("en", "page")
REFUSALS: Final = section("en", "refusal")
# The operations that pages call for a buyer.
BUYER_OPERATIONS: Final = ("place_hold", "extend_booking", "cancel_booking", "start_payment", "submit_receipt")
# Refusals that our own forms cannot cause. Anybody who sends other forms gets a general text.
UNREACHABLE_CODES: Final = {
    "idempotency_key_missing",
    "idempotency_key_reused",
    "unauthorized",
    "forbidden",
    "not_found",
    "unknown_seat",
    "unknown_pool",
    "unknown_tariff",
    "unknown_provider",
    "review_not_offered",
    "not_confirmed",
    "not_submitted",
}


def _placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def _calls(text: str) -> Iterator[tuple[str, set[str]]]:
    """The texts that a template shows, as patterns of keys, with the names of their placeholders."""
    for found in re.finditer(r"\bt\((.*?)\)\s*(?:\}\}|\bif\b|\belse\b|%\}|~|\))", text.replace("\n", " ")):
        first = re.match(r"""\s*(["'])([\w.]+)\1((?:\s*~\s*[^,]+)?)""", found[1])
        assert first is not None, found[0]
        end = re.search(r"""~\s*["']([\w.]+)["']\s*$""", first[3])
        pattern = re.escape(first[2]) + (r"\w+" + re.escape(end[1] if end else "") if first[3] else "")
        yield pattern, set(re.findall(r"[,(]\s*(\w+)=", found[1][first.end() :].replace("number(", "")))


def _keys(pattern: str) -> set[str]:
    """The keys that match the pattern, with or without a plural form."""
    return {key for key in PAGE if re.fullmatch(rf"{pattern}(\.one|\.many)?", key)}


def _texts_in_templates() -> list[tuple[str, str, set[str]]]:
    return [(path.name, pattern, names) for path in TEMPLATES for pattern, names in _calls(path.read_text())]


def _texts_in_python() -> list[tuple[str, str]]:
    """The modules that use a text by a fixed key, such as `ticket.calendar`, with the key."""
    found = []
    for path in WEB.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "translate":
                key = node.args[1]
                if isinstance(key, ast.Constant):
                    found.append((path.name, str(key.value)))
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_the_same_texts_with_the_same_placeholders(language: str) -> None:
    for kind, texts in TEXTS["en"].items():
        other = TEXTS[language][kind]
        assert set(other) == set(texts), kind
        for key, text in texts.items():
            assert _placeholders(other[key]) == _placeholders(text), key
            assert other[key].strip() == other[key] != "", key
    assert set(TEXTS[language]) == set(TEXTS["en"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_problem_of_a_stampede_has_a_text(language: str) -> None:
    texts = {translate(language, f"stampede.problem.{problem}", buyers=1, seconds=2) for problem in StampedeProblem}
    assert len(texts) == len(StampedeProblem)


def test_languages_are_named_in_their_own_language() -> None:
    assert LANGUAGE_NAMES == {"en": "English", "es": "Español", "ru": "Русский", "uz": "Oʻzbek"}  # noqa: RUF001


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_are_clean_and_contain_no_markup(language: str) -> None:
    for name, texts in TEXTS[language].items():
        assert section(language, name) == texts
    for texts in TEXTS[language].values():
        for key, text in texts.items():
            assert not re.search(r"[<>]|&\w+;|\.\.\.| {2}", text), key


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_ends_with_a_name_that_may_have_its_own_full_stop(language: str) -> None:
    """An example is "Acme, S.A."."""
    for texts in TEXTS[language].values():
        assert [key for key, text in texts.items() if re.search(r"\{(org|event|pool)\}\.", text)] == []


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
def test_no_text_is_left_untranslated(language: str) -> None:
    same = {
        f"{name}.{key}"
        for name, texts in TEXTS["en"].items()
        for key, text in texts.items()
        if text == TEXTS[language][name][key]
    }
    assert same <= {
        "page.no", "page.total", "page.subtotal", "email.total", "email.subtotal", "stampede.refusals", "bot.time_left",
    }  # fmt: skip


def test_every_singular_text_has_a_plural() -> None:
    for texts in TEXTS["en"].values():
        for key in texts:
            if key.endswith((".one", ".many")):
                stem = key.rpartition(".")[0]
                assert {f"{stem}.one", f"{stem}.many"} <= set(texts)
                assert stem not in texts


def test_every_text_used_by_templates_exists_with_its_placeholders() -> None:
    used = _texts_in_templates()
    assert len(used) > 100
    by_name = {key for _, pattern, _ in used if r"\w" not in pattern for key in _keys(pattern)}
    for name, pattern, names in used:
        keys = _keys(pattern)
        assert keys, f"{name}: {pattern}"
        for key in keys - by_name if r"\w" in pattern else keys:
            assert _placeholders(PAGE[key]) <= names, f"{name}: {key}"
            assert "n" in names or not key.endswith((".one", ".many")), f"{name}: {key}"


def test_every_text_used_by_functions_exists() -> None:
    used = _texts_in_python()
    assert used
    for name, key in used:
        kind, _, rest = key.partition(".")
        assert rest in TEXTS["en"][kind], name


def test_every_text_used_by_scripts_exists() -> None:
    for path in SCRIPTS:
        for key in re.findall(r"\bsay\(\"(\w+)\"", path.read_text()):
            kinds = ("stampede", "script") if path.name == "stampede.js" else ("script",)
            found = {key, f"{key}.many"} & {each for kind in kinds for each in TEXTS["en"][kind]}
            assert found, f"{path.name}: {key}"


def test_no_text_is_unused() -> None:
    used = set().union(*(_keys(pattern) for _, pattern, _ in _texts_in_templates()))
    assert set(PAGE) - used == set()
    scripts = "\n".join(path.read_text() for path in SCRIPTS)
    for kind in ("script", "stampede"):
        stems = {key.partition(".")[0] for key in TEXTS["en"][kind]}
        assert {stem for stem in stems if not re.search(rf"\b{stem}\b", scripts)} == set(), kind


def test_every_refusal_text_belongs_to_a_refusal() -> None:
    sources = "\n".join(path.read_text() for path in WEB.glob("*.py"))
    own = set(re.findall(r"Problem\(\d+, \"(\w+)\"\)", sources))
    codes = {each.code for each in Refusal} | own | {"other"}
    assert {key.removesuffix("_best") for key in REFUSALS} <= codes


@pytest.mark.parametrize("status", Status)
def test_every_status_of_a_booking_has_a_text_and_a_page(status: Status) -> None:
    assert f"status.{status.value}" in PAGE
    assert (WEB / "templates" / "status" / f"{status.value}.html").is_file()
    assert status in TONES


def test_every_status_page_belongs_to_a_status() -> None:
    pages = {path.stem for path in (WEB / "templates" / "status").iterdir()}
    assert pages == {status.value for status in Status}


def test_every_preset_and_every_provider_has_its_texts() -> None:
    for preset in PRESETS:
        assert f"preset.{preset}" in PAGE
    pool: Any = None
    everything = Settings(sandbox_webhook_secret="whsec_c2VjcmV0", stripe_key="sk_test_1", stripe_webhook_secret="x")
    for provider in make_providers(everything, Database(pool)):
        assert {f"pay.with.{provider}", f"pay.about.{provider}"} <= set(PAGE)


def _codes_for_buyers() -> set[str]:
    codes = {each.code for operation in OPERATIONS if operation.name in BUYER_OPERATIONS for each in operation.refusals}
    return codes | {"rate_limited", "busy", "invalid_request", "payload_too_large"}


def test_every_refusal_that_a_buyer_can_get_has_its_own_text() -> None:
    assert {operation.name for operation in OPERATIONS} >= set(BUYER_OPERATIONS)
    missing = {code for code in _codes_for_buyers() - UNREACHABLE_CODES if code not in REFUSALS}
    assert missing == set()


@pytest.mark.parametrize(
    ("language", "limit", "of_best"),
    [("en", None, False), ("en", 2, False), ("en", None, True), ("es", 2, True), ("es", None, False)],
)
def test_every_refusal_has_a_text_without_placeholders(language: str, limit: int | None, of_best: bool) -> None:
    for code in [each.code for each in Refusal] + ["nothing_chosen", "no_file", "wrong_file", "never heard of"]:
        text = refusal_text(language, PageProblem(409, code, ("A-1", "{x}")), limit=limit, of_best=of_best)
        assert text
        assert "None" not in text
        assert "{limit}" not in text


def test_a_value_in_a_text_is_never_read_as_a_placeholder() -> None:
    text = refusal_text("en", PageProblem(409, "seat_taken", ("{0.__class__}", "{limit}")))
    assert text == "Sorry, someone just took {0.__class__}, {limit}."
    assert translate("en", "page.units", n=1) != translate("en", "page.units", n=2)
    assert translate("en", "page.units", n=2) != translate("en", "page.units", n=0)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_kind_of_email_has_its_texts(language: str) -> None:
    parts = {f"{kind}.{part}" for kind in EmailKind for part in ("subject", "heading", "lead", "next")}
    texts = section(language, "email")
    assert {key for key in texts if "." in key} == parts
    assert set().union(*(_placeholders(text) for text in texts.values())) <= {"event", "org", "booking"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_kind_of_sms_and_push_message_has_its_texts(language: str) -> None:
    assert set(section(language, "sms")) == {*SmsKind, "tickets"}
    stems = {key.removesuffix(".one").removesuffix(".many") for key in section(language, "push")}
    assert stems == {f"{kind}.{part}" for kind in PushKind for part in ("title", "body")}
    texts = {**section(language, "sms"), **section(language, "push")}
    names = {"event", "org", "booking", "when", "link", "n"}
    assert set().union(*(_placeholders(text) for text in texts.values())) == names


@pytest.mark.parametrize("key", ["page.no_such_text", "no_such_section.title", "page.units.one.one", "page", ""])
def test_a_missing_text_is_an_error(key: str) -> None:
    with pytest.raises(MissingTextError):
        translate("en", key, n=1)


def test_a_language_without_a_file_is_an_error() -> None:
    with pytest.raises(MissingTextError):
        translate("de", "page.close")


def test_a_placeholder_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        translate("en", "page.from")


@pytest.mark.parametrize(("n", "form"), [(1, "one"), ("1", "one"), (0, "many"), ("2", "many"), ("1.000", "many")])
def test_the_number_chooses_the_plural_form(n: object, form: str) -> None:
    assert translate("es", "page.units", n=n) == section("es", "page")[f"units.{form}"].format(n=n)


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_name_the_real_limit_of_a_receipt_file(language: str) -> None:
    limit = f" {FILE_BYTES_MAX // 1024**2} MB"
    keys = (
        "page.receipt.kinds",
        "page.sorry.payload_too_large_text",
        "refusal.payload_too_large",
        "script.fileTooLarge",
    )
    assert [key for key in keys if limit not in translate(language, key)] == []
