"""Make the demo's model: a tiny random Qwen3 whose text round-trips by construction.

Usage: make_model.py DIRECTORY [tiny|large]. The large one has some 74 million parameters, so that
prefill costs, for benchmarks. Runs with the engine environment's Python; the result depends only
on size and seed. What makes chat safe to re-tokenise:

- one byte is one token and nothing merges, so text and token ids map onto each other;
- greedy decoding never emits what would not come back from text: special tokens other than the end
  of turn, control characters, bytes of multi-byte characters, and "<", which could spell a special
  token. Their rows of the output layer are zero, and the other rows come in pairs w and -w, so that
  the greatest logit is always above theirs. A grammar can still ask for any of them;
- the chat template renders an assistant message exactly as it was generated.

The weights are scaled so that a change of any earlier token changes what is generated: a reply that
read the wrong KV is seen to be wrong.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD, IM_START, IM_END = range(len(SPECIALS))
MAX_TOKENS = 8192
LAYERS = 12
GROWTH = 3.0
END_OF_TURN = 0.9  # scale of its row: lower is rarer; about one free turn in two ends within 96
SEED = 1
SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 32},
    "large": {
        "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "head_dim": 64,
    },
}  # fmt: skip

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '' if loop.first else '\\n' }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) }}
{{- ', "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: 256 bytes after the special tokens."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: len(SPECIALS) + i for i, symbol in enumerate(symbols)}
    vocabulary |= {special: i for i, special in enumerate(SPECIALS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIALS[PAD],
        eos_token=SPECIALS[IM_END],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_model(tokenizer: PreTrainedTokenizerFast, size: str = "tiny") -> Qwen3ForCausalLM:
    """A random model in float32, a function of `SEED` and the size, one of `SIZES`."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_hidden_layers=LAYERS,
        num_key_value_heads=2,
        **SIZES[size],
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=IM_END,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0.0, _scale(name), generator=random)
        _keep_to_plain_text(model.lm_head.weight, tokenizer)
    model.generation_config.eos_token_id = IM_END
    return model


def _scale(name: str) -> float:
    """Standard deviation of a weight.

    Attention of the first layer spreads over the whole history, so one changed token moves its
    mean by little. Every further layer outweighs the layers before it and, being quadratic, widens
    small differences by about a half: enough of them in a row make the outcome hang on every
    token, and not yet on rounding.
    """
    found = re.search(r"layers\.(\d+)\.", name)
    if found is None:
        return 1.0
    layer = int(found[1])
    if "o_proj" in name:
        return 4.0 if layer == 0 else 0.5 * GROWTH**layer
    if "down_proj" in name:
        return GROWTH**layer
    return 0.25 if "mlp" in name else 0.125


def _keep_to_plain_text(rows: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    """Make printable ASCII other than "<", and the end of turn, the only greedy outputs."""
    plain = [tokenizer.encode(chr(code))[0] for code in range(0x20, 0x7F) if chr(code) != "<"]
    kept = torch.zeros(len(rows), dtype=torch.bool)
    kept[plain] = True
    kept[IM_END] = True
    rows[~kept] = 0.0
    rows[plain[1::2]] = -rows[plain[0::2]]
    rows[IM_END] *= END_OF_TURN


def main(directory: Path, size: str = "tiny") -> None:
    """Write model, tokenizer and template to `directory`."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, size)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    count = sum(weight.numel() for weight in model.parameters())
    print(f"model with {count:,} random parameters, {len(tokenizer)} tokens: {directory}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not set(sys.argv[2:]) <= set(SIZES):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
