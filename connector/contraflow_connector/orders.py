"""What an agent's orders come to at the handle table, and what the agent is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from contraflow.core.errors import ContraflowError, Internal
from contraflow.core.fleet import Engine
from contraflow.core.handle import Claim, ClaimRequest, Handle
from contraflow.core.transfer_params import HOLD_UNTIL, Params
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import (
    duration,
    engine_to_proto,
    handle_to_proto,
    proof_to_proto,
    seconds,
)
from contraflow.wire.errors import reason_to_proto
from contraflow.wire.params import params_to_proto
from contraflow_connector.guard import log
from contraflow_connector.retained import Retained


class Orders:
    """One engine's side of a link, whatever carries it. ``say`` must not wait: it is called
    under the lock of the handle table.

    ``offer`` makes the parameters of a claimed handle as its reader shall get them.
    """

    def __init__(
        self,
        engine: Engine,
        retained: Retained,
        offer: Callable[[Handle], Params],
        say: Callable[[pb.AttachRequest], None],
    ) -> None:
        self._engine = engine
        self._retained = retained
        self._offer = offer
        self._say = say

    def hello(self, handles: Iterable[Handle]) -> pb.AttachRequest:
        """The first message of a link."""
        described = [self._describe(handle) for handle in handles]
        return pb.AttachRequest(
            hello=pb.Hello(engine=engine_to_proto(self._engine), handles=described)
        )

    def changed(self, handle: Handle) -> None:
        """A handle is new or has changed."""
        self._say(pb.AttachRequest(handle_update=pb.HandleUpdate(handle=self._describe(handle))))

    def obey(self, order: pb.AttachResponse) -> None:
        """Carry out an order and answer it; others than those known here are passed over."""
        kind = order.WhichOneof("message")
        if kind == "acquire":
            self._say(pb.AttachRequest(acquire_result=self._acquire(order.acquire)))
        elif kind == "return_order":
            self._say(pb.AttachRequest(return_result=self._return(order.return_order)))
        elif kind == "release":
            ids = self._retained.release(order.release.handle_ids)
            result = pb.ReleaseResult(call_id=order.release.call_id, handle_ids=ids)
            self._say(pb.AttachRequest(release_result=result))
        elif kind == "renew":
            self._renew(order.renew)

    def _describe(self, handle: Handle) -> handle_pb2.Handle:
        return handle_to_proto(handle, self._engine.engine_id, self._retained.clock())

    def _renew(self, order: pb.Renew) -> None:
        def answer(handle_ids: list[str]) -> None:
            result = pb.RenewResult(call_id=order.call_id, handle_ids=handle_ids)
            self._say(pb.AttachRequest(renew_result=result))

        self._retained.renew(order.handle_ids, seconds(order.ttl), answer)

    def _acquire(self, order: pb.Acquire) -> pb.AcquireResult:
        request = ClaimRequest(
            claim_id=order.claim_id,
            tenant=order.tenant,
            session_key=order.session_key,
            start_by=seconds(order.start_by),
            max_read=seconds(order.max_read),
            message_digests=tuple(order.message_digests),
            hint_handle_id=order.hint_handle_id,
            produced_by_turn_id=order.produced_by_turn_id,
        )
        try:
            grant = self._grant(self._retained.acquire(request))
            return pb.AcquireResult(call_id=order.call_id, grant=grant)
        except Exception as error:
            return pb.AcquireResult(call_id=order.call_id, denial=_denial(error))

    def _grant(self, handle: Handle) -> pb.Grant:
        claim = live_claim(handle)
        try:
            now = self._retained.clock()
            return pb.Grant(
                handle=self._describe(handle),
                transfer_params=params_to_proto(self._offer(handle)),
                proof=proof_to_proto(handle.proof),
                start_by=duration(claim.start_by - now),
                hold_until=duration(claim.hold_until - now),
            )
        except Exception:
            self._retained.return_claim(claim.claim_id)  # nobody was told of it: nobody reads
            raise

    def _return(self, order: pb.ReturnOrder) -> pb.ReturnResult:
        try:
            self._retained.return_claim(order.claim_id)
            return pb.ReturnResult(call_id=order.call_id)
        except Exception as error:
            return pb.ReturnResult(call_id=order.call_id, denial=_denial(error))


def _denial(error: Exception) -> pb.Denial:
    if not isinstance(error, ContraflowError):
        log.exception("an order of the agent failed")
        error = Internal("the connector failed; see the engine's log")
    return pb.Denial(reason=reason_to_proto(error.reason), message=str(error))


def live_claim(handle: Handle) -> Claim:
    """The claim on a handle. Raises Internal if there is none."""
    if handle.claim is None:
        raise Internal("parameters are handed out for claims only")
    return handle.claim


def claimed_params(handle: Handle, margin: float) -> Params:
    """The parameters of a claimed handle: its reader refuses to start after ``start_by``, and
    fails a read that has not ended by ``hold_until``.

    ``margin``: seconds before the expiry from which on vLLM declines a read.
    """
    claim = live_claim(handle)
    return {
        **handle.params,
        "remote_blocks_expiry_time": claim.start_by + margin,
        HOLD_UNTIL: claim.hold_until,
    }
