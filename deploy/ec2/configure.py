"""The files of /etc/contraflow for one of the two nodes, made of the examples. Pure.

One way to configure: what is not named here is as in deploy/config and deploy/systemd/env.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from deploy.ec2.models import Model

DEPLOY = Path(__file__).resolve().parents[1]
PORTS = {"prefill": 8100, "decode": 8200}
RANKS = 8
MODELS_FOLDER = "/opt/dlami/nvme/models"
_DIRECTORY_PORT, _AGENT_PORT, _CLIENT_PORT, _PEER_PORT = 7400, 7410, 2379, 2380
# Of prefill alone, as the reference: every prompt is computed, or pulled, from its beginning.
_ROLE_ARGUMENTS = {"prefill": "--no-enable-prefix-caching", "decode": ""}
_SHUTDOWN = "--shutdown-timeout 60"


def files(
    role: str, name: str, model: Model, prefill: str, decode: str, folder: str = MODELS_FOLDER
) -> dict[str, str]:
    """Text by file name. ``prefill`` and ``decode`` are the nodes' private addresses.

    Prefill's node also has etcd, the directory, and two routers that differ in one setting.
    """
    own = {"prefill": prefill, "decode": decode}[role]
    directory = f"{prefill}:{_DIRECTORY_PORT}"
    made = {
        "agent.toml": _toml(
            "agent.toml",
            advertise_address=f"{own}:{_AGENT_PORT}", directory=[directory],
        ),
        "engine.env": _env(
            "engine.env.example",
            VLLM_HOST_IP=own, VLLM_NIXL_SIDE_CHANNEL_HOST=own, DIRECTORY=directory,
        ) + (Path(__file__).parent / "env" / "efa.env").read_text(),
        f"{role}.env": _env(
            f"{role}.env.example",
            MODEL=f"{folder}/{model.repository.rpartition('/')[2]}",
            ENGINE_ARGS=_quoted(model.arguments, _ROLE_ARGUMENTS[role], _SHUTDOWN),
        ),
    }  # fmt: skip
    if role == "prefill":
        made |= {
            "etcd.env": _etcd(own),
            "directory.toml": _toml("directory.toml", endpoints=[f"{own}:{_CLIENT_PORT}"]),
            "router.toml": _router(directory, 8000, 7420),
            "router-one-way.toml": _never_pulling(_router(directory, 8001, 7421)),
        }
    return made


# What is ours in a unit, and what stands there for vLLM's own connector.
_STOCK = (
    (r'"kv_connector": "ContraflowConnector"', '"kv_connector": "NixlConnector"'),
    (r' *"kv_connector_module_path": .*\n', ""),
    (r'"kv_load_failure_policy": "recompute"', '"kv_load_failure_policy": "fail"'),
    (r', \\\n *"contraflow": \{(?:.*\n)*?.*"role": "\w+"\}', ""),
)


def stock(role: str) -> str:
    """A drop-in for the engine's unit that starts vLLM with its own connector and the reference's
    settings, for vLLM's own proxy. ValueError if the unit is not as it was."""
    unit = (DEPLOY / "systemd" / f"vllm-{role}@.service").read_text()
    found = re.search(r"^ExecStart=(?:.*\\\n)*.*$", unit, re.MULTILINE)
    # Without one it is 64 tokens, as the reference had it.
    command = re.sub(r' *"kv_recompute_threshold": .*\n', "", found[0]) if found else ""
    for pattern, text in _STOCK:
        command, count = re.subn(pattern, lambda _, text=text: text, command)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"the unit of {role} has no {pattern}")
    return f"[Service]\nExecStart=\n{command}\n"


def _router(directory: str, port: int, grpc_port: int) -> str:
    text = _toml(
        "router.toml",
        listen=f"0.0.0.0:{port}", grpc_listen=f"0.0.0.0:{grpc_port}", directory=[directory],
    )  # fmt: skip
    # No tenants: nobody has to authenticate, and nobody but the bench gets in (security group).
    return re.sub(r"\n# Without any tenant.*\n\[tenants\.acme\]\n.*\n", "\n", text)


def _never_pulling(router: str) -> str:
    return _with_lines(router, {"# decision = ": 'decision = "never"'})


def _etcd(own: str) -> str:
    peers = f"http://{own}:{_PEER_PORT}"
    clients = f"http://{own}:{_CLIENT_PORT}"
    return _env(
        "etcd.env.example",
        ETCD_LISTEN_CLIENT_URLS=clients, ETCD_ADVERTISE_CLIENT_URLS=clients,
        ETCD_LISTEN_PEER_URLS=peers, ETCD_INITIAL_ADVERTISE_PEER_URLS=peers,
        ETCD_INITIAL_CLUSTER=f"etcd-1={peers}",
    )  # fmt: skip


def _toml(example: str, **values: str | list[str]) -> str:
    lines = {
        f"{name} = ": f"{name} = {_in_quotes(value)}"
        if isinstance(value, str)
        else f"{name} = [{', '.join(map(_in_quotes, value))}]"
        for name, value in values.items()
    }
    return _with_lines((DEPLOY / "config" / example).read_text(), lines)


def _env(example: str, **values: str) -> str:
    lines = {f"{name}=": f"{name}={value}" for name, value in values.items()}
    return _with_lines((DEPLOY / "systemd" / "env" / example).read_text(), lines)


def _with_lines(text: str, lines: Mapping[str, str]) -> str:
    """``lines`` by how the one begins that each replaces. ValueError if there is none."""
    for start, line in lines.items():
        pattern = re.compile(f"^{re.escape(start)}.*$", re.MULTILINE)
        if not pattern.search(text):
            raise ValueError(f"no line of the example begins with {start!r}")
        text = pattern.sub(lambda _, line=line: line, text)  # type: ignore[misc]
    return text


def _in_quotes(text: str) -> str:
    return f'"{text}"'


def _quoted(*arguments: str) -> str:
    return _in_quotes(" ".join(filter(None, arguments)))
