"""A vLLM engine without a model: the same contracts, virtual KV, any speed.

engine/pool/…: what an engine does with blocks and requests; http/…: its OpenAI server.
"""
