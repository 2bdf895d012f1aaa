"""Customer tokens, which a merchant's back end requests for its buyers."""

from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import CustomerTokenNew
from holdfast.api.responses import CustomerToken
from holdfast.runtime.credentials import sign_customer_token


async def create_customer_token(call: Call, body: CustomerTokenNew) -> ApiResponse[CustomerToken]:
    token, expires_at = await sign_customer_token(call.services.database, call.caller.org, body.user, body.ttl_seconds)
    return ApiResponse(CustomerToken(token=token, user=body.user, expires_at=expires_at), 201)
