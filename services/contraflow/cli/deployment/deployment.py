"""A whole deployment on this machine: started together, ended together."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from contraflow.cli.deployment import control_plane
from contraflow.cli.deployment.addresses import (
    Addresses,
    RouterHandle,
    choose_addresses,
    data_parallel_size,
)
from contraflow.cli.deployment.engine_command import (
    ENGINE_BYTES,
    EngineHandle,
    sim_process,
    vllm_process,
)
from contraflow.cli.deployment.errors import ProcessDied
from contraflow.cli.deployment.etcd import etcd_process
from contraflow.cli.deployment.held_folder import temporary_folder
from contraflow.cli.deployment.http_client import answers
from contraflow.cli.deployment.metrics import Samples, scrape
from contraflow.cli.deployment.ports import PortAllocator
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.procfs import available_memory
from contraflow.cli.deployment.progress import Progress, Silent
from contraflow.cli.deployment.project import TEMPORARY, Project
from contraflow.cli.deployment.services import Services
from contraflow.cli.deployment.spec import DeploymentSpec, EngineKind
from contraflow.cli.deployment.supervisor import Ready, Supervisor
from contraflow.core.fleet import Role

_SETUP_HINT = "run `make setup`, which repairs the engine environment"
_KNOWN_SECONDS = 60.0
_MAX_SCRATCH = 68
"""Bytes; the path of a socket may have 107, and vLLM's names take 37."""


class Deployment:
    """``async with Deployment(spec) as deployment`` starts it and waits until it serves.

    Names of its processes: ``etcd``, ``directory``, ``agent``, ``router-1`` …,
    ``prefill-1`` …, ``decode-1`` …, ``reference``. On leaving the context, by whatever way,
    all of them end. Entering raises ConfigError (a port in use), DeploymentError, or OSError.
    The event loop must run on a thread that lives as long as the deployment.
    """

    def __init__(
        self,
        spec: DeploymentSpec,
        *,
        progress: Progress | None = None,
        project: Project | None = None,
    ) -> None:
        self.spec = spec
        self.addresses: Addresses
        self.run_dir: Path
        self.seconds: dict[str, float] = {}
        """How long the parts of the start took: ``model``, ``services``, ``engines``."""
        self._progress = progress or Silent()
        self._project = project or Project.of_this_package()
        self._supervisor: Supervisor
        self._services: Services
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Deployment:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    @property
    def routers(self) -> tuple[RouterHandle, ...]:
        """The routers, the one on the port asked for first."""
        return self.addresses.routers

    @property
    def reference(self) -> EngineHandle:
        """The engine without a connector. Only with ``with_reference``."""
        assert self.addresses.reference is not None, "the spec has no reference"
        return self.addresses.reference

    def engine(self, role: Role | str, number: int = 1) -> EngineHandle:
        """The ``number``-th engine of a role, counted from 1."""
        name = f"{Role(role).value}-{number}"
        return next(engine for engine in self.addresses.engines if engine.name == name)

    async def metrics(self, engine: EngineHandle) -> Samples:
        """The engine's metrics, as of about a second ago."""
        return await scrape(engine.endpoint)

    def log_path(self, name: str) -> Path:
        """The log of a process."""
        return self._supervisor.get(name).log

    def pid(self, name: str) -> int:
        """Process id, which is also the id of its session."""
        return self._supervisor.get(name).pid

    async def kill(self, name: str) -> None:
        """End a process and its children by SIGKILL, as a crash would."""
        await self._supervisor.kill(name)

    async def stop(self, name: str) -> None:
        """Stop a process as an operator would."""
        await self._supervisor.stop(name)

    async def restart(self, name: str) -> None:
        """Stop a process if it runs, start it again with the same command, wait until it
        serves and, unless the agent is down, until all running routers know just the engines
        that run."""
        await self._supervisor.restart(name)
        await self._until_ready(name)
        if self.spec.with_services and self.is_running("agent"):
            await self._until_known()

    def is_running(self, name: str) -> bool:
        """True if a process of that name was started and has not ended."""
        return self._supervisor.is_running(name)

    async def death(self) -> ProcessDied:
        """Waits until a process dies that nobody stopped, and returns the error."""
        return await self._supervisor.death()

    async def _start(self) -> None:
        spec, stack = self.spec, self._stack
        vllm = spec.engine is EngineKind.VLLM
        python = (spec.engine_python or self._project.engine_python()) if vllm else None
        self.run_dir = spec.run_dir or stack.enter_context(self._project.new_run_dir())
        scratch = stack.enter_context(_scratch_folder(self.run_dir))
        self.addresses = choose_addresses(spec, scratch, PortAllocator())
        self._supervisor = await stack.enter_async_context(
            Supervisor(self.run_dir, grace=spec.stop_grace)
        )
        self._services = Services(spec, self.addresses, self.run_dir)
        if python:
            async with self._timing("model"):
                model = spec.model_dir or await self._demo_model(python)
        if spec.with_services:
            async with self._timing("services"):
                await self._start_services()
        async with self._timing("engines"):
            if python:
                await self._start_engines(
                    partial(vllm_process, python=python, model=model, scratch=scratch)
                )
            else:
                await self._start_engines(sim_process)
            if spec.with_services:
                await self._until_known()

    async def _stop(self) -> None:
        async with AsyncExitStack() as stopping:
            stopping.callback(self._progress.idle)
            stopping.push_async_exit(self._stack)
            # If this can not be told, for the output is what has failed, all is stopped the same.
            self._progress.waiting("stopping all processes")

    async def _demo_model(self, python: Path) -> Path:
        target = self._project.model_dir(self.spec.model_size)
        if not target.exists():
            self._progress.waiting(f"making the {self.spec.model_size} model")
            target.parent.mkdir(parents=True, exist_ok=True)
            # Made aside, then moved: a run that is interrupted leaves no half of a model.
            with temporary_folder(target.parent, "model-") as folder:
                made = folder / "model"
                maker = str(self._project.model_maker)
                command = [str(python), maker, str(made), self.spec.model_size]
                await self._supervisor.run(ProcessSpec("make-model", command, hint=_SETUP_HINT))
                with suppress(OSError):  # another run was faster
                    made.rename(target)
            self._progress.done(f"model made: {target}")
        return target

    async def _start_services(self) -> None:
        for process in (
            etcd_process(self.addresses, self.run_dir),
            self._services.directory(),
            self._services.agent(),
            *map(self._services.router, self.routers),
        ):
            self._progress.waiting(f"starting {process.name}")
            await self._supervisor.start(process)
            await self._until_ready(process.name)
        self._progress.done(f"etcd, directory, agent and {_count(self.routers, 'router')} serve")

    async def _start_engines(self, process: Callable[..., ProcessSpec]) -> None:
        socket = self.spec.dialled.get("engines", self.addresses.agent_socket)
        agent = socket if self.spec.with_services else ""
        engines = self._all_engines()
        if self.spec.engine is EngineKind.VLLM:
            self._warn_of_memory(len(engines))
        for engine in engines:
            await self._supervisor.start(process(spec=self.spec, engine=engine, agent=agent))
        what = f"{self.spec.engine.value} engine"
        hint = ", about a minute" if self.spec.engine is EngineKind.VLLM else ""
        self._progress.waiting(f"starting {_count(engines, what)}{hint}")
        for engine in engines:
            await self._until_ready(engine.name)
            self._progress.done(f"{engine.name} is up")

    def _warn_of_memory(self, engines: int) -> None:
        available, wanted = available_memory(), engines * ENGINE_BYTES
        if 0 < available < wanted:
            self._progress.done(
                f"warning: {available / 1e9:.1f} GB of memory are free, and {engines} engines "
                f"take about {wanted / 1e9:.1f} GB"
            )

    def _all_engines(self) -> tuple[EngineHandle, ...]:
        reference = self.addresses.reference
        return (*self.addresses.engines, *([reference] if reference else []))

    async def _until_ready(self, name: str) -> None:
        await self._supervisor.until(self._readiness(name), name, self.spec.start_deadline)

    def _readiness(self, name: str) -> Ready:
        addresses = self.addresses
        urls = {"etcd": addresses.etcd}
        urls |= {engine.name: engine.endpoint for engine in self._all_engines()}
        if name in urls:
            return partial(answers, urls[name])
        targets = {"directory": addresses.directory, "agent": addresses.agent}
        targets |= {router.name: router.grpc for router in addresses.routers}
        return partial(control_plane.is_serving, targets[name])

    async def _until_known(self) -> None:
        """Wait until all ranks of the engines are attached and each router sees just those."""
        self._progress.waiting("waiting until all routers know the engines")
        running = sum(self.is_running(engine.name) for engine in self.addresses.engines)
        wanted = running * data_parallel_size(self.spec.engine_args)
        routers = [router for router in self.routers if self.is_running(router.name)]

        async def known() -> bool:
            attached = await control_plane.attached_engines(self.addresses.agent)
            ids = sorted(engine.engine.engine_id for engine in attached)
            if len(ids) != wanted:
                return False
            views = [await control_plane.engines_in_view(router.grpc) for router in routers]
            return all(sorted(view) == ids for view in views)

        await self._supervisor.until(known, "the engines in the routers' view", _KNOWN_SECONDS)
        self._progress.done("the engines are attached, and every router knows them")

    @asynccontextmanager
    async def _timing(self, part: str) -> AsyncIterator[None]:
        start = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - start


def _scratch_folder(run_dir: Path) -> AbstractContextManager[Path]:
    """A private folder for sockets and temporary files, gone at the end; elsewhere if the run's
    lies too deep for the paths of sockets."""
    if len(os.fsencode(run_dir)) + len(f"/{TEMPORARY}12345678") > _MAX_SCRATCH:
        return temporary_folder(Path(tempfile.gettempdir()), "contraflow-tmp-")
    return temporary_folder(run_dir, TEMPORARY)


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
