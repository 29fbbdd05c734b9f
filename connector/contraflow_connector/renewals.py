"""New deadlines on their way to the workers, and which of them all ranks have confirmed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from contraflow_connector.guard import guarded

Answer = Callable[[list[str]], None]
"""Gets the ids of the handles that were renewed. Called once, under a lock: it must not wait."""


@dataclass(slots=True)
class _Order:
    """One order, until each of its handles is settled."""

    answer: Answer
    open: set[str]
    renewed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Extension:
    handle_id: str
    deadline: float
    order: _Order
    confirmed: int = 0


class Renewals:
    """Not thread-safe: the holder guards it with the lock of its handle table.

    ``ranks`` workers hold the blocks of each request.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._by_request: dict[str, _Extension] = {}
        self._unsent: dict[str, float] = {}

    def order(
        self, extend: dict[str, str], deadline: float, held: list[str], answer: Answer
    ) -> None:
        """Let the handles of ``extend``, by request id, be held until ``deadline``, and answer
        once all are settled; ``held`` are those that are held that long already."""
        order = _Order(answer, set(extend.values()), held)
        for request_id, handle_id in extend.items():
            until = self._no_earlier(request_id, deadline)
            self.end(request_id)  # the later order counts
            self._by_request[request_id] = _Extension(handle_id, until, order)
            self._unsent[request_id] = until
        _answer_if_settled(order)

    def take(self) -> dict[str, float]:
        """Deadlines by request id that the workers have not been told."""
        unsent, self._unsent = self._unsent, {}
        return unsent

    def confirm(self, request_id: str, deadline: float) -> bool:
        """A rank holds a request's blocks until then; True if now all do.

        Confirmations that come late, for what has ended or was ordered anew, count for nothing.
        """
        extension = self._by_request.get(request_id)
        if extension is None or extension.deadline != deadline:
            return False
        extension.confirmed += 1
        return extension.confirmed == self._ranks

    def settle(self, request_id: str, *, renewed: bool) -> None:
        """A confirmed extension was put into the table, or had to be left out."""
        if extension := self._by_request.get(request_id):
            _settle(extension, renewed=renewed)
            if renewed:
                del self._by_request[request_id]

    def end(self, request_id: str) -> None:
        """The handle has ended, or is ordered to be held for yet longer."""
        self._unsent.pop(request_id, None)
        if extension := self._by_request.pop(request_id, None):
            _settle(extension, renewed=False)

    def unconfirmed(self) -> Iterable[str]:
        """Request ids of handles that some worker may hold for longer than the table says."""
        return list(self._by_request)

    def forget_orders(self) -> None:
        """Nobody waits for answers any more; extensions go on."""
        for extension in self._by_request.values():
            extension.order.open.clear()

    def _no_earlier(self, request_id: str, deadline: float) -> float:
        # Some worker may hold to an earlier extension that was for longer: a lease of the table
        # that ends before is ended by nobody. And no two extensions have the same deadline: it
        # is what ranks confirm, each once, so that to count is enough.
        if earlier := self._by_request.get(request_id):
            return max(deadline, math.nextafter(earlier.deadline, math.inf))
        return deadline


def _settle(extension: _Extension, *, renewed: bool) -> None:
    order = extension.order
    if extension.handle_id not in order.open:
        return
    order.open.discard(extension.handle_id)
    if renewed:
        order.renewed.append(extension.handle_id)
    _answer_if_settled(order)


@guarded(None)
def _answer_if_settled(order: _Order) -> None:
    if not order.open:
        order.answer(order.renewed)
