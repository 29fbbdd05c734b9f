"""Entry point ``vllm.general_plugins``: ``"kv_connector": "ContraflowConnector"`` is enough."""

from __future__ import annotations


def register() -> None:
    """Called by vLLM once or more in each of its processes."""
    # Imported here: a process that never builds a connector must not pay for NIXL.
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    name = "ContraflowConnector"
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, "contraflow_connector.connector", name)
