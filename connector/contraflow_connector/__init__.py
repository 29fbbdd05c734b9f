"""Contraflow's KV connector: a subclass of vLLM's NixlConnector.

Importing this package imports neither vLLM nor gRPC: vLLM's plugin loader does so in every process.
"""

__version__ = "0.1.0"
