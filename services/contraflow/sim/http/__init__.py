"""The sim engine's OpenAI server: what clients of a vLLM engine see, over ``sim.api``.

server (routes) -> completions, chat, messages, tokens -> serving (ids, ranks, masks, checks)
-> choice (what is generated), sse, shapes
"""
