"""The router as one object: everything between the two listeners and the fleet."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

from contraflow.core.cost import PROFILES
from contraflow.core.fleet import Session
from contraflow.core.handle_use import DecideUse, by_size
from contraflow.router.affinity import Homes, Load, Replies
from contraflow.router.agents import Agents
from contraflow.router.config import RouterConfig
from contraflow.router.costs import Costs, policy_of
from contraflow.router.decode import Decode
from contraflow.router.end_session import SessionEnds
from contraflow.router.generate import Generations
from contraflow.router.legs import Legs
from contraflow.router.metrics import RouterMetrics
from contraflow.router.planning import Planner
from contraflow.router.plans import Plans
from contraflow.router.prefill import Prefill
from contraflow.router.releases import Releases
from contraflow.router.routes import Routes
from contraflow.router.servicer import RouterServicer
from contraflow.router.tenancy import Tenancy
from contraflow.router.turn import Turns
from contraflow.runtime.channels import OpenChannel, open_channel
from contraflow.runtime.clock import Clock
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.web import UpstreamClient


def new_id() -> str:
    """32 hex digits."""
    return uuid.uuid4().hex


class RouterApp:
    """Made inside a running event loop. ``routes`` serve HTTP, ``servicer`` gRPC."""

    def __init__(
        self,
        config: RouterConfig,
        secret: bytes,
        replica: FleetReplica,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        *,
        client: UpstreamClient | None = None,
        open_channel: OpenChannel = open_channel,
        decide_use: DecideUse = by_size,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``client`` and ``open_channel`` reach engines and agents, over sockets by default.
        ``decide_use`` says what is done with a handle. ``draw`` is uniform in [0, 1)."""
        self.metrics = RouterMetrics()
        self.tenancy = Tenancy({name: t.api_keys for name, t in config.tenants.items()})
        self.homes = Homes(config.max_affinities)
        self._client = client or UpstreamClient(config.engines)
        self._agents = Agents(
            config.acquire_deadline_seconds, config.claim_start_by_seconds, open_channel
        )
        replies = Replies(config.max_affinities)
        load = Load()
        policy = replace(
            policy_of(config.decision, config.recompute_threshold_tokens),
            decode_only_below_tokens=config.decode_only_below_tokens,
        )
        profile = PROFILES[config.cost_profile]
        costs = Costs(config.decision, policy, profile, clock, lambda: replica.engines, draw)
        planner = Planner(replica, self.homes, replies, load, policy, costs)
        legs = Legs(self._client, config.engine_api_key, config.decode_timeout_seconds)
        turns = Turns(
            secret=secret,
            tenancy=self.tenancy,
            planner=planner,
            prefill=Prefill(
                self._agents, legs, self.homes, replies, load, costs, decide_use, clock, ids
            ),
            decode=Decode(legs, load, ids),
            releases=Releases(self._agents, self.metrics),
            homes=self.homes,
            replies=replies,
            load=load,
            costs=costs,
            metrics=self.metrics,
            clock=clock,
            new_id=ids,
        )
        self.routes = Routes(turns, replica, self.tenancy, self.metrics)
        self.generations = Generations(turns, self.metrics, planner.default_model)
        plans = Plans(secret, planner, load, costs)
        ends = SessionEnds(secret, self._agents, self.homes, replica, self.metrics)
        self.servicer = RouterServicer(self.generations, plans, ends, self.tenancy, replica)
        replica.on_session(self._session_published)

    async def close(self) -> None:
        """Give back what is owed, then drop all connections."""
        await self._agents.close()
        self._client.close()

    def _session_published(self, session: Session) -> None:
        self.homes.forget(session.session_key)
