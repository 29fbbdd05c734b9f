"""Contraflow: control plane for bidirectional KV cache transfer between vLLM engines."""

__version__ = "0.1.0"
