"""Tokens that a merchant's back end hands to its customers."""

from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import CustomerToken
from holdfast.runtime.credentials import sign_customer_token


async def create_customer_token(call: Call) -> ApiResponse:
    token, expires_at = await sign_customer_token(
        call.services.database, call.caller.org, call.body.user, call.body.ttl_seconds
    )
    return ApiResponse(CustomerToken(token=token, user=call.body.user, expires_at=expires_at), 201)
