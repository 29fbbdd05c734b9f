"""Following the handles of several agents at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from contraflow.cli.operate.output import note
from contraflow.cli.operate.servers import OperatorError, Server, Servers, asking, in_words
from contraflow.core.errors import ContraflowError, Overloaded
from contraflow.v1 import agent_service_pb2, engine_pb2, handle_pb2

_News = handle_pb2.Handle | ContraflowError


def follow_handles(
    servers: Servers,
    engines: Sequence[engine_pb2.Engine],
    session_key: str,
    show: Callable[[handle_pb2.Handle], None],
) -> None:
    """Show the handles of these engines and each change of them, until Ctrl-C.

    Raises OperatorError once no agent is left to listen to.
    """
    wanted = {one.engine_id for one in engines}
    news: SimpleQueue[tuple[str, _News]] = SimpleQueue()

    def listen(target: str) -> None:
        threading.Thread(
            target=_listen, args=(servers, target, session_key, news), daemon=True
        ).start()

    left = {one.agent_address for one in engines}
    for target in sorted(left):
        listen(target)
    try:
        while left:
            target, what = news.get()
            if isinstance(what, handle_pb2.Handle):
                if what.engine_id in wanted:
                    show(what)
            elif isinstance(what, Overloaded):
                note(f"changes at the agent {target} came too fast: here is all there is now")
                listen(target)
            else:
                left.discard(target)
                note(in_words(what, Server("agent", target)).message)
    except KeyboardInterrupt:
        return
    raise OperatorError("no agent is left to watch: `contraflow ps` shows which answer")


def _listen(
    servers: Servers, target: str, session_key: str, news: SimpleQueue[tuple[str, _News]]
) -> None:
    request = agent_service_pb2.WatchHandlesRequest(session_key=session_key)
    try:
        with asking(Server("agent", target)):
            for response in servers.agent(target).WatchHandles(request):
                if response.HasField("handle"):
                    news.put((target, response.handle))
        news.put((target, ContraflowError("the agent has ended the watch")))
    except ContraflowError as error:
        news.put((target, error))
