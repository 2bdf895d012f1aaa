"""Tokens that a merchant's back end hands to its customers."""

from holdfast.access import customer_token
from holdfast.http.operation import Answer, Call
from holdfast.http.views import CustomerToken


async def create_customer_token(call: Call) -> Answer:
    token, expires_at = await customer_token(call.house.pool, call.by.org, call.body.user, call.body.ttl_seconds)
    return Answer(CustomerToken(token=token, user=call.body.user, expires_at=expires_at), 201)
