"""The decode leg: passed on as it comes, and sent once more where nothing has come of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from contraflow.core.fleet import Engine
from contraflow.core.plan import Plan, without
from contraflow.core.transfer_params import Params, for_plain_decode, has_remote_blocks
from contraflow.router.affinity import Load
from contraflow.router.legs import LegRequest, Legs
from contraflow.router.relay import Aborted, ClientResponse, Unanswered, relay
from contraflow.router.replies import ReplyReader
from contraflow.router.report import Retry
from contraflow.router.turn_context import Turn
from contraflow.web import UpstreamError, UpstreamReset


class Decode:
    """Runs decode legs.

    A leg may be sent again only while nothing has been passed on, and never with the blocks of
    the first try, which may have been read: without them nothing is read, and to compute twice
    does no harm.
    """

    def __init__(self, legs: Legs, load: Load, new_id: Callable[[], str]) -> None:
        self._legs = legs
        self._load = load
        self._new_id = new_id

    async def run(
        self,
        turn: Turn,
        plan: Plan,
        params: Params | None,
        responder: ClientResponse,
        on_first_byte: Callable[[], None],
        on_end: Callable[[Engine, ReplyReader | None], None],
    ) -> None:
        """Pass the answer on. ``on_end`` gets the engine that made it, before its end is
        written. Raises UpstreamError, Aborted and SseEventTooLarge."""
        leg = turn.leg
        with ExitStack() as elsewhere:
            while True:
                try:
                    await self._send(turn, leg, plan, params, responder, on_first_byte, on_end)
                    return
                except (UpstreamError, Unanswered) as error:
                    if responder.started:
                        raise
                    planned = plan.decode
                    plan, params = self._again(turn, plan, params, error)
                # A first try may still be running in the engine, and is ended by its id.
                leg = replace(turn.leg, leg_id=self._new_id())
                if plan.decode != planned:
                    elsewhere.enter_context(self._load.leg(plan.decode.engine_id))

    async def _send(
        self,
        turn: Turn,
        leg: LegRequest,
        plan: Plan,
        params: Params | None,
        responder: ClientResponse,
        on_first_byte: Callable[[], None],
        on_end: Callable[[Engine, ReplyReader | None], None],
    ) -> None:
        reader = ReplyReader() if turn.retains(params) and turn.identity.continues else None
        exchange, rejected = self._legs.decode(plan.decode, leg, params), False
        try:
            async with exchange as response:
                rejected = 400 <= response.status < 500  # before the engine has seen it
                await relay(
                    response, responder, (turn.report.header(),), on_first_byte,
                    lambda: on_end(plan.decode, reader), reader,
                    keep_failure=_reads(params),
                )  # fmt: skip
        finally:
            if _reads(params) and exchange.sent and not rejected:
                turn.report.taken = True

    def _again(
        self, turn: Turn, plan: Plan, params: Params | None, error: UpstreamError | Unanswered
    ) -> tuple[Plan, Params | None]:
        """What to send in place of a leg of which nothing came. Raises ``error`` if nothing is."""
        aborted = isinstance(error, Aborted)
        if aborted or (isinstance(error, UpstreamError) and not error.bytes_sent):
            other = without(plan, plan.decode)
            if other is None or not turn.may_retry(Retry.DECODE_ELSEWHERE, error):
                raise error
            turn.report.decode = other.decode.engine_id
            unread = not aborted and other.hands_over
            return other, params if unread or not _reads(params) else self._plain(turn)
        if isinstance(error, Unanswered):
            unanswered, reused = True, False
        else:
            unanswered = isinstance(error, UpstreamReset) and not error.response_started
            reused = error.reused
        if unanswered and _reads(params) and turn.may_retry(Retry.DECODE_WITHOUT_BLOCKS, error):
            return plan, self._plain(turn)
        if unanswered and reused and turn.may_retry(Retry.DECODE_RESENT, error):
            return plan, None if params is None else self._plain(turn)
        raise error

    @staticmethod
    def _plain(turn: Turn) -> Params:
        return turn.instruct(for_plain_decode(), turn.report.decision)


def _reads(params: Params | None) -> bool:
    return params is not None and has_remote_blocks(params)
