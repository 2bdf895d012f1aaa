"""A refusal becomes a problem document with its own status, which says whether to retry the request."""

import pytest
from msgspec import json

from holdfast.api.problems import HTTP_STATUS, problem
from holdfast.api.responses import Problem
from holdfast.core.refusals import Refusal, Refused
from holdfast.core.states import TRANSITIONS


def test_every_refusal_has_an_http_status() -> None:
    assert set(HTTP_STATUS) == set(Refusal)
    assert {status for status in HTTP_STATUS.values() if not 400 <= status <= 599} == set()


def test_a_refused_transition_is_a_conflict_or_gone() -> None:
    refusals = {target for target in TRANSITIONS.values() if isinstance(target, Refusal)}
    assert {HTTP_STATUS[refusal] for refusal in refusals} == {409, 410}


def test_only_temporary_refusals_are_retryable() -> None:
    retryable = {refusal for refusal in Refusal if refusal.retryable}
    assert retryable == {Refusal.BUSY, Refusal.RATE_LIMITED, Refusal.PROVIDER_UNAVAILABLE, Refusal.INTERNAL}


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.code)
def test_a_problem_document_carries_the_text_of_its_refusal(refusal: Refusal) -> None:
    response = problem(Refused(refusal))
    assert isinstance(response.body, bytes)
    document = json.decode(response.body, type=Problem)
    assert response.status == document.status == HTTP_STATUS[refusal]
    assert (document.code, document.title, document.detail) == (refusal.code, refusal.title, refusal.title)
    assert document.retryable is refusal.retryable
    assert (b"retry-after" in dict(response.headers)) is (document.status in (429, 503))


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.code)
def test_a_title_consists_of_whole_sentences(refusal: Refusal) -> None:
    assert refusal.title[0].isupper()
    assert refusal.title.endswith(".")
