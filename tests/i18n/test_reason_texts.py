"""Readers see in their own language why a booking ended, and see text that staff typed unchanged."""

from typing import Final

import pytest

from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal
from holdfast.i18n.languages import LANGUAGES
from holdfast.i18n.reason_texts import reason_text
from holdfast.i18n.texts import section

LATE_PAYMENT_CODES: Final = {
    Refusal.HOLD_EXPIRED.code,
    Refusal.ALREADY_CONFIRMED.code,
    Refusal.ALREADY_REJECTED.code,
    Refusal.ALREADY_CANCELLED.code,
    Refusal.ALREADY_REFUNDED.code,
    Refusal.ALREADY_COMPLETED.code,
    Refusal.ALREADY_SUBMITTED.code,
}
CODES: Final = set(Reason)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_reason_code_has_a_text(language: str) -> None:
    assert set(section(language, "reason")) == CODES | LATE_PAYMENT_CODES


@pytest.mark.parametrize("code", sorted(CODES | LATE_PAYMENT_CODES))
def test_a_code_is_translated_into_each_language(code: str) -> None:
    texts = {reason_text(language, code) for language in LANGUAGES}
    assert len(texts) == len(LANGUAGES)
    assert code not in texts


@pytest.mark.parametrize("typed", ["The singer is ill.", "Event_cancelled", "{code} <b>", "", "ñ\nñ"])
def test_text_that_staff_typed_stays_unchanged(typed: str) -> None:
    assert [reason_text(language, typed) for language in LANGUAGES] == [typed] * len(LANGUAGES)
