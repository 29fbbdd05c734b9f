"""Keeps the view current with the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from itertools import groupby
from typing import NoReturn

import structlog

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.directory.records import Records
from contraflow.directory.view import View
from contraflow.runtime.backoff import Backoff
from contraflow.runtime.clock import Clock
from contraflow.store.port import Batch, Store

log = structlog.get_logger()


async def follow_store(
    store: Store,
    records: Records,
    view: View,
    clock: Clock,
    new_backoff: Callable[[], Backoff] = Backoff,
) -> NoReturn:
    """List and watch until cancelled, through every failure of the store.

    After any loss the whole content is listed again, rather than the watch resumed: a store
    that was restored from a backup would leave a watch of a future revision silent.
    """
    backoff = new_backoff()
    while True:
        try:
            items, revision = await store.list(records.prefix)
            view.resync((r for item in items if (r := records.decode(item))), revision)
            log.info("store_synced", revision=revision, records=len(items))
            backoff.reset()
            async with aclosing(store.watch(records.prefix, revision + 1)) as batches:
                async for batch in batches:
                    _apply(batch, records, view)
        except (StoreUnavailable, RevisionCompacted) as error:
            view.lost()
            log.warning("store_lost", error=str(error))
        await clock.sleep(backoff.next())


def _apply(batch: Batch, records: Records, view: View) -> None:
    for revision, changes in groupby(batch.changes, key=lambda change: change.revision):
        view.apply(revision, [event for change in changes if (event := records.event(change))])
