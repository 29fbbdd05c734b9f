"""Facts about the demo's model, as JSON on stdout: demo_model_probe.py DIRECTORY.

Runs with the engine environment's Python, which has torch and transformers; the assertions are in
test_demo_model.py.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

TOKENS = 48
TEXTS = (
    "",
    "plain",
    "  leading, trailing  ",
    "tabs\tand\nlines\n",
    "Köln, 東京, 🚚",
    "e\u0301 \x00\x7f",
)
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"id": "A\\"1", "deep": [1, {"b": null}]}}\n'
CALL += "</tool_call>"
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
FILLER = "Orders are looked up before an answer is given. " * 12


class Probe:
    """The model in `directory`, driven greedily."""

    def __init__(self, directory: str) -> None:
        torch.set_num_threads(1)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.model: Any = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.end = self.tokenizer.eos_token_id

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, tools=TOOLS, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return ids

    def generate(self, ids: list[int], past_the_end: bool = False) -> list[int]:
        """Up to `TOKENS` ids; on past the end of turn where only the numbers matter."""
        out: list[int] = []
        cache, given = None, ids
        while len(out) < TOKENS:
            with torch.no_grad():
                step = self.model(torch.tensor([given]), past_key_values=cache, use_cache=True)
            cache, given = step.past_key_values, [int(step.logits[0, -1].argmax())]
            out += given
            if given == [self.end] and not past_the_end:
                break
        return out


def text_round_trips(probe: Probe) -> dict[str, bool]:
    encode, decode = probe.tokenizer.encode, probe.tokenizer.decode
    dice = random.Random(7)
    printable = [encode(chr(code))[0] for code in range(0x20, 0x7F)]
    samples = [[dice.choice(printable) for _ in range(200)] for _ in range(50)]
    return {
        "text_to_ids_to_text": all(decode(encode(text)) == text for text in TEXTS),
        "one_byte_one_token": all(len(encode(text)) == len(text.encode()) for text in TEXTS),
        "ids_to_text_to_ids": all(encode(decode(ids)) == ids for ids in samples),
    }


def history_round_trips(probe: Probe) -> dict[str, bool]:
    """Whether prompt and reply are a token prefix of the next prompt, by kind of reply."""
    question = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Where is it?"},
    ]
    start = probe.prompt(question)
    by_length = probe.generate(start)[:9]
    call = {
        "id": "call-1",
        "type": "function",
        "function": {"name": "look_up", "arguments": {"id": 'A"1', "deep": [1, {"b": None}]}},
    }
    result = {"role": "tool", "tool_call_id": "call-1", "content": "on its way"}
    more = {"role": "user", "content": "And now?"}
    text = probe.tokenizer.decode(by_length)
    cases: dict[str, tuple[list[int], list[dict[str, Any]]]] = {
        "ended_by_length": (by_length, [{"role": "assistant", "content": text}, more]),
        "ended_by_stop": ([*by_length, probe.end], [{"role": "assistant", "content": text}, more]),
        "spaces_kept": (
            [*probe.tokenizer.encode("  a b  "), probe.end],
            [{"role": "assistant", "content": "  a b  "}, more],
        ),
        "tool_call": (
            [*probe.tokenizer.encode(CALL), probe.end],
            [{"role": "assistant", "content": None, "tool_calls": [call]}, result],
        ),
        "text_then_two_calls": (
            [*probe.tokenizer.encode(f"Look.{CALL}\n{CALL}"), probe.end],
            [{"role": "assistant", "content": "Look.", "tool_calls": [call, call]}, result, result],
        ),
    }
    return {
        name: probe.prompt([*question, *reply])[: len(start) + len(ids)] == start + ids
        for name, (ids, reply) in cases.items()
    }


def replies_to_changed_histories(probe: Probe) -> dict[str, list[int]]:
    """Replies to a conversation and to copies of it that differ in one character."""
    original = [
        {"role": "system", "content": f"You are an agent. {FILLER}"},
        {"role": "user", "content": f"Where is order AB123456? {FILLER}"},
        {"role": "assistant", "content": "x7Q w!kd 2"},
        {"role": "tool", "tool_call_id": "call-1", "content": '{"status": "in transit"}'},
        {"role": "user", "content": "When will it be here?"},
    ]
    replies = {"original": probe.generate(probe.prompt(original), past_the_end=True)}
    for i, message in enumerate(original):
        for where in (0, len(message["content"]) // 2, len(message["content"]) - 1):
            content = message["content"]
            changed = content[:where] + chr(ord(content[where]) ^ 1) + content[where + 1 :]
            messages = [*original[:i], {**message, "content": changed}, *original[i + 1 :]]
            replies[f"{i}:{where}"] = probe.generate(probe.prompt(messages), past_the_end=True)
    return replies


def main(directory: str) -> None:
    probe = Probe(directory)
    replies = replies_to_changed_histories(probe)
    emitted = sorted({token for reply in replies.values() for token in reply} - {probe.end})
    facts = {
        "text": text_round_trips(probe),
        "history": history_round_trips(probe),
        "replies": replies,
        "emitted": probe.tokenizer.decode(emitted),
        "turns_ended": sum(probe.end in reply for reply in replies.values()),
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
