"""A payment can end while its provider still prepares the checkout. Nobody then pays for nothing."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

from msgspec import structs

from holdfast.api import payment_handlers
from holdfast.api.call import Call
from holdfast.core.booking import Booking
from holdfast.core.payment import Payment, PaymentResult, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import Verb
from holdfast.payments.provider import CheckoutRequest, StartedCheckout
from holdfast.runtime import db
from holdfast.runtime.settings import Settings
from tests.support.engine_harness import async_test, new_action_command
from tests.support.payment_harness import FakeGateway, PaymentHarness, payment_harness


class SlowGateway(FakeGateway):
    """Something happens while it prepares a checkout."""

    def __init__(self, happen: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._happen = happen

    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        await self._happen()
        return await super().start(request)


async def _start_checkout(
    harness: PaymentHarness, booking: Booking, payment: Payment, happen: Callable[[], Awaitable[object]]
) -> tuple[SlowGateway, Payment | Refusal]:
    gateway = SlowGateway(happen)
    extended = await harness.execute(new_action_command(harness.event, booking.id, Verb.EXTEND))
    services = SimpleNamespace(
        providers={"gateway": gateway}, database=db.Database(harness.pool), engine=harness.engine, settings=Settings()
    )
    try:
        call = cast(Call, SimpleNamespace(services=services))
        return gateway, await payment_handlers._start_checkout(call, structs.replace(extended, payment=payment))
    except RefusedError as error:
        return gateway, error.refused.refusal


@async_test
async def test_the_checkout_of_a_payment_that_failed_meanwhile_is_closed_and_not_shown(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking, at_provider=False)
        gateway, answer = await _start_checkout(
            harness, booking, payment, lambda: harness.settle(payment, booking, PaymentResult.FAILED)
        )
        assert answer is Refusal.HOLD_EXPIRED
        row = await harness.row(payment)
        assert (row["status"], row["checkout_url"]) == ("failed", None)
        assert gateway.refs_of_calls("close") == [row["provider_ref"]]


@async_test
async def test_a_payment_that_succeeded_meanwhile_keeps_the_reference_of_its_notice(database: str) -> None:
    async with payment_harness(database) as harness:
        booking = await harness.hold("A-1")
        payment = await harness.start_payment(booking, at_provider=False)
        gateway, answer = await _start_checkout(
            harness,
            booking,
            payment,
            lambda: harness.deliver_notice(payment, ref="gw_paid", payment=harness.payment_text(payment)),
        )
        assert isinstance(answer, Payment)
        assert (answer.status, answer.provider_ref) == (PaymentStatus.SUCCEEDED, "gw_paid")
        assert gateway.refs_of_calls("close") == []
