"""Whether a node can move KV over EFA, and whether its engines do. Pure.

Each check gives a Finding; one that is not good says what to do. None passes for want of
evidence: a tool that is missing or said nothing is a refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from deploy.ec2.outputs import Said, fabrics, gpus, rails, transports, ucx_lanes

LIBFABRIC, UCX = "LIBFABRIC", "UCX"
_TOLD = ("INFO", "DEBUG", "TRACE")
_SHOWN = 4
_HOST_COPIES = ("without FI_HMEM support", "provider does not support FI_HMEM")
_INSTALL = (
    "install or repair the EFA software (README, step 3), log in again, and see that "
    "/opt/amazon/efa/bin is on PATH"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``do`` is the next step; empty if it is good."""

    check: str
    said: str
    do: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing has to be done."""
        return not self.do


def efa_devices(devices: Collection[str], wanted: int) -> Finding:
    """The devices that the kernel's efa driver serves."""
    said = f"{len(devices)} of {wanted} EFA devices"
    if len(devices) >= wanted:
        return Finding("devices", said)
    return Finding(
        "devices",
        said,
        "launch the instance with an EFA interface on every network card (launch.sh does), and "
        "see `lsmod | grep efa`: what is not attached at launch can not be used",
    )


def libfabric(fi_info: Said, devices: Collection[str]) -> Finding:
    """``fi_info -p efa -t FI_EP_RDM`` must know every device of the kernel."""
    if fi_info.status == 127:
        return Finding("fi_info", "there is no fi_info", _INSTALL)
    found = {
        one.device
        for one in fabrics(fi_info.text)
        if one.provider == "efa" and one.endpoint == "FI_EP_RDM"
    }
    missing = sorted(set(devices) - found)
    if found and not missing:
        return Finding("fi_info", f"libfabric's provider efa has {len(found)} devices")
    said = (
        f"libfabric's provider efa lacks {_some(missing)}"
        if found
        else f"libfabric has no provider efa: {fi_info.last_line}"
    )
    return Finding(
        "fi_info",
        f"{said}. NIXL would take tcp instead, without a word",
        f"{_INSTALL}; /dev/infiniband must be readable for the engines' user",
    )


def h200s(nvidia_smi: Said, wanted: int) -> Finding:
    """The GPUs of a p5en."""
    found = gpus(nvidia_smi.text) if nvidia_smi.status == 0 else []
    fit = [gpu for gpu in found if "H200" in gpu.name]
    if len(fit) >= wanted:
        return Finding("gpus", f"{len(fit)} × {fit[0].name}, driver {fit[0].driver}")
    names = ", ".join(sorted({gpu.name for gpu in found})) or nvidia_smi.last_line
    return Finding(
        "gpus",
        f"{len(fit)} of {wanted} H200: {names}",
        "use a p5en.48xlarge, and an AMI with NVIDIA's driver; other GPUs can be measured with "
        "--gpus 0, but not compared with the reference",
    )


def settings(env: Mapping[str, str], own_addresses: Collection[str]) -> Iterator[Finding]:
    """The engines' environment, as in /etc/contraflow/engine.env."""
    backend = env.get("NIXL_BACKEND", "")
    if backend == LIBFABRIC:
        yield _wants(env, "FI_PROVIDER", ("efa",), "else libfabric may serve tcp in its place")
        yield _wants(
            env, "FI_EFA_USE_DEVICE_RDMA", ("1",), "else reads may be emulated by send and receive"
        )
    elif backend == UCX:
        yield _ucx_may_use(env.get("UCX_TLS", ""))
        yield _wants(env, "UCX_LOG_LEVEL", ("info", "debug", "trace"), "else UCX tells no lanes")
    else:
        yield Finding(
            "NIXL_BACKEND", f"NIXL_BACKEND is {backend or 'unset'}", "set NIXL_BACKEND=LIBFABRIC"
        )
    yield _wants(env, "NIXL_LOG_LEVEL", _TOLD, "else NIXL does not tell which provider it took")
    for name in ("VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST"):
        yield _own_address(name, env.get(name, ""), own_addresses)


def _wants(env: Mapping[str, str], name: str, good: Sequence[str], else_what: str) -> Finding:
    value = env.get(name, "")
    if value in good:
        return Finding(name, f"{name}={value}")
    return Finding(name, f"{name} is {value or 'unset'}: {else_what}", f"set {name}={good[0]}")


def _ucx_may_use(transports_allowed: str) -> Finding:
    allowed = transports_allowed.split(",")
    if "srd" in allowed and not {"tcp", "all"} & set(allowed):
        return Finding("UCX_TLS", f"UCX_TLS={transports_allowed}")
    return Finding(
        "UCX_TLS",
        f"UCX_TLS is {transports_allowed or 'unset'}: UCX takes tcp where srd, its transport for "
        "EFA, does not serve, and does not say so",
        "set UCX_TLS=srd,cuda_copy,cuda_ipc,sm,self, or better NIXL_BACKEND=LIBFABRIC",
    )


def _own_address(name: str, value: str, own: Collection[str]) -> Finding:
    if value in own and not ip_address(value).is_loopback:
        return Finding(name, f"{name}={value}")
    return Finding(
        name,
        f"{name} is {value or 'unset'}: the other node can not reach this one there",
        f"set {name} to the private address of this node, of {_some(sorted(own)) or 'hostname -I'}",
    )


def ucx(ucx_info: Said, devices: Collection[str]) -> Finding:
    """``ucx_info -d`` must offer srd on every device. Only with UCX as NIXL's backend."""
    if ucx_info.status == 127:
        return Finding(
            "ucx_info",
            "there is no ucx_info, so nobody knows what UCX would use",
            "install UCX 1.19 or newer, built with EFA, or set NIXL_BACKEND=LIBFABRIC",
        )
    found = {one.device for one in transports(ucx_info.text) if one.name == "srd"}
    missing = sorted(set(devices) - found)
    if found and not missing:
        return Finding("ucx_info", f"UCX offers srd on {len(found)} devices")
    other = sorted({one.name for one in transports(ucx_info.text) if one.kind == "network"})
    return Finding(
        "ucx_info",
        f"UCX offers no srd on {_some(missing) or 'any device'}, of networks only "
        f"{', '.join(other) or 'nothing'}: transfers would go there",
        "set NIXL_BACKEND=LIBFABRIC, or use a UCX that was built with EFA",
    )


def trial(agent: Said, backend: str, devices: int) -> Finding:
    """A NIXL agent that was made with the engines' Python and environment, and ended again."""
    if agent.status != 0:
        return Finding(
            "NIXL agent",
            f"NIXL makes no agent with {backend}: {agent.last_line}",
            "read `ldd` of libplugin_LIBFABRIC.so in /opt/vllm: libfabric.so.1 must come from "
            "/opt/amazon/efa/lib and libhwloc.so.15 from the package libhwloc15",
        )
    if backend == UCX:  # tells its lanes when it has connected
        return Finding("NIXL agent", "NIXL makes an agent with UCX")
    return _over_efa("NIXL agent", agent.text, 1, devices)


def engine_log(log: str, backend: str, ranks: int, devices: int) -> Finding:
    """The journal of an engine since its start: every rank's agent must use EFA.

    With UCX it must have talked to the other node already.
    """
    if backend == LIBFABRIC:
        return _over_efa("engine log", log, ranks, devices)
    lanes = list(ucx_lanes(log))
    over_tcp = sorted({device for name, device in lanes if name == "tcp"})
    if over_tcp:
        return Finding(
            "engine log",
            f"UCX talks tcp to the other node, over {_some(over_tcp)}",
            "set UCX_TLS=srd,cuda_copy,cuda_ipc,sm,self, or NIXL_BACKEND=LIBFABRIC, and restart "
            "the engines on both nodes",
        )
    if not any(name == "srd" for name, _ in lanes):
        return Finding(
            "engine log",
            "UCX tells of no lane over srd",
            "set UCX_LOG_LEVEL=info, restart the engines, send one request through the router "
            "and look again",
        )
    return Finding("engine log", "UCX talks srd to the other node")


def _over_efa(check: str, log: str, agents: int, devices: int) -> Finding:
    told = rails(log)
    strangers = sorted({one.provider for one in told} - {"efa"})
    if strangers:
        return Finding(
            check,
            f"NIXL took {', '.join(strangers)} instead of efa: KV would go over TCP, about a "
            "hundred times slower",
            "set FI_PROVIDER=efa and see `fi_info -p efa` with the engines' environment and "
            "user; then restart the engine",
        )
    if len(told) < agents:
        return Finding(
            check,
            f"{len(told)} of {agents} NIXL agents say that they use EFA",
            "set NIXL_BACKEND=LIBFABRIC and NIXL_LOG_LEVEL=INFO, restart the engine and give the "
            "journal since that start",
        )
    if any(one.count < devices for one in told):
        fewest = min(one.count for one in told)
        return Finding(
            check,
            f"an agent uses {fewest} of {devices} EFA devices",
            "see the check of devices, and restart the engine",
        )
    if any(sign in log for sign in _HOST_COPIES):
        return Finding(
            check,
            "the provider can not reach GPU memory: blocks would be copied through the host",
            "load NVIDIA's driver with dma-buf or nvidia-peermem, and use the libfabric of "
            "/opt/amazon/efa, which is built for CUDA",
        )
    return Finding(check, f"{len(told)} NIXL agents use efa, {told[0].count} devices each")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
