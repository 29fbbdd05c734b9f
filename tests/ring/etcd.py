"""One member of etcd, asked over its JSON gateway."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.ring.layout import PREFIX

_TIMEOUT = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True)
class Status:
    """Ids of members; ``leader`` is 0 if there is none."""

    member: int
    leader: int


class EtcdMember:
    """Raises aiohttp.ClientError, OSError or TimeoutError where it does not do as it is told."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def status(self) -> Status:
        """As it sees the cluster."""
        answer = await self._ask("maintenance/status")
        return Status(int(answer["header"]["member_id"]), int(answer.get("leader", 0)))

    async def keys(self) -> set[str]:
        """All keys of ours."""
        everything = {"key": _text(PREFIX), "range_end": _text(PREFIX + "~"), "keys_only": True}
        answer = await self._ask("kv/range", **everything)
        return {base64.b64decode(one["key"]).decode() for one in answer.get("kvs", [])}

    async def hand_over(self, member: int) -> None:
        """Of the leader: make another one leader."""
        await self._ask("maintenance/transfer-leadership", targetID=str(member))

    async def fill(self, quota: int) -> None:
        """Write until it takes no more."""
        size = 2**20
        try:
            for number in range(2 * quota // size):
                value = base64.b64encode(bytes(size)).decode()
                await self._ask("kv/put", key=_text(f"filler/{number}"), value=value)
        except aiohttp.ClientResponseError:
            return
        raise AssertionError("etcd has taken more than its quota")

    async def alarms(self) -> list[Any]:
        """Those that are raised."""
        answer = await self._ask("maintenance/alarm", action="GET")
        alarms: list[Any] = answer.get("alarms", [])
        return alarms

    async def forget_filler(self) -> None:
        """Delete what was filled in, and its history."""
        everything = {"key": _text("filler/"), "range_end": _text("filler0")}
        answer = await self._ask("kv/deleterange", **everything)
        revision = answer["header"]["revision"]
        await self._ask("kv/compaction", revision=revision, physical=True)

    async def defragment(self) -> None:
        """Give the space back."""
        await self._ask("maintenance/defragment")

    async def disarm(self) -> None:
        """Take writes again."""
        for alarm in await self.alarms():
            await self._ask("maintenance/alarm", action="DEACTIVATE", **alarm)

    async def _ask(self, path: str, **request: Any) -> Any:
        url = f"{self._url}/v3/{path}"
        async with self._http.post(url, json=request, timeout=_TIMEOUT) as answer:
            answer.raise_for_status()
            return await answer.json(content_type=None)


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
