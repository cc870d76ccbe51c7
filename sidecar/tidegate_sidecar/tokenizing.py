"""``/tokenize`` and ``/detokenize``: asked of the engine beside the scheduler (:mod:`.side_lane`).

They take no step of the engine, so nothing of them is billed and rate limits do not count them; who
is on hold or drained is refused as with everything else.
"""

from __future__ import annotations

from tidegate.scheduling.contracts import Stop, TenantPolicy
from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.answers import WholeAnswer, json_answer
from tidegate_sidecar.bodies import Body
from tidegate_sidecar.engine import EngineUnreachable
from tidegate_sidecar.engine_connection import EngineBroken
from tidegate_sidecar.errors import ApiError
from tidegate_sidecar.forward import upstream_error
from tidegate_sidecar.relay import read_whole
from tidegate_sidecar.runtime import Runtime


async def ask_tokenizer(
    runtime: Runtime, tenant: TenantPolicy, body: Body, request_id: str
) -> WholeAnswer:
    """The engine's answer; :class:`ApiError` where there is none."""
    dispatcher = runtime.dispatcher
    if dispatcher.departure.over:
        raise ApiError(Outcome.DRAINING)
    if not dispatcher.engine_ready:
        raise dispatcher.refusal(Outcome.NO_ENGINE, tenant.name)
    if tenant.stop is not Stop.NONE:
        raise dispatcher.refusal(Outcome.HELD, tenant.name)
    async with runtime.side_lane.turn(tenant.name):
        try:
            exchange = await runtime.engine.post(
                body.endpoint.path, {"X-Request-Id": request_id}, body.raw
            )
        except EngineUnreachable:
            raise dispatcher.refusal(Outcome.NO_ENGINE, tenant.name) from None
        except EngineBroken:
            raise ApiError(Outcome.ENGINE_FAILED) from None
        try:
            if exchange.status != 200:
                raise await upstream_error(runtime, exchange, body.endpoint.path)
            answer, encoding = await read_whole(exchange)
        finally:
            exchange.close()
    headers = {} if encoding is None else {"Content-Encoding": encoding}
    return json_answer(answer, request_id, headers=headers)
