"""The history of a conversation as a client keeps it, as text or as token ids. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

# Equally long, and one token with its blank in most vocabularies.
_WORDS = [
    "time", "year", "work", "back", "life", "hand", "part", "case", "week", "road", "home", "room",
    "area", "book", "door", "name", "line", "city", "team", "idea", "body", "face", "game", "hour",
    "army", "data", "bank", "rate", "plan", "tree", "land", "wall", "sand", "rain", "wind", "fire",
    "gold", "iron", "salt", "milk", "corn", "rice", "boat", "ship", "wave", "lake", "hill", "farm",
    "barn", "gate", "roof", "lamp", "desk", "page", "note", "song", "tune", "drum", "bell", "ring",
    "star", "moon",
]  # fmt: skip
CHAT_PATH = "/v1/chat/completions"
TOKENS_PATH = "/v1/completions"
_IDS = range(33, 127)  # every vocabulary has them, none has a special token there


@dataclass(frozen=True, slots=True)
class Answer:
    """What a turn was answered with, for the history. ``token_ids``: None if not told."""

    text: str
    token_ids: Sequence[int] | None = None


class History(Protocol):
    """What was said so far, in the form of one API."""

    path: str

    def say(self, tokens: int, random: Random) -> None:
        """Add about so many made-up tokens of the client's."""
        ...

    def hear(self, answer: Answer) -> None:
        """Add an answer. ValueError if it lacks what this form needs."""
        ...

    def body(self) -> dict[str, Any]:
        """The fields of the request that hold the history."""
        ...

    def copy(self) -> History:
        """A branch that begins here."""
        ...


@dataclass(slots=True)
class ChatHistory:
    """Messages of ``/v1/chat/completions``. Tools' results are users' messages too: a message
    of a tool needs a call of the model's before it, and no model calls as a workload wants.

    ``tokens_per_word`` is the vocabulary's, as measured.
    """

    tokens_per_word: float = 1.0
    messages: list[Mapping[str, str]] = field(default_factory=list)
    path: str = CHAT_PATH

    def say(self, tokens: int, random: Random) -> None:
        """One message, longer if the last one is the client's too."""
        said = words(max(1, round(tokens / self.tokens_per_word)), random)
        if self.messages and self.messages[-1]["role"] == "user":
            said = f"{self.messages.pop()['content']} {said}"
        self.messages.append({"role": "user", "content": said})

    def hear(self, answer: Answer) -> None:
        """One message."""
        self.messages.append({"role": "assistant", "content": answer.text})

    def body(self) -> dict[str, Any]:
        """``messages``."""
        return {"messages": self.messages}

    def copy(self) -> ChatHistory:
        """A branch that begins here."""
        return ChatHistory(self.tokens_per_word, list(self.messages))


@dataclass(slots=True)
class TokenHistory:
    """Token ids of ``/v1/completions``, as vLLM takes and returns them: lengths are exact, and
    answers come back as they were generated, whatever their text."""

    ids: list[int] = field(default_factory=list)
    path: str = TOKENS_PATH

    def say(self, tokens: int, random: Random) -> None:
        """Exactly so many."""
        self.ids += random.choices(_IDS, k=tokens)

    def hear(self, answer: Answer) -> None:
        """Exactly what was generated. ValueError if the server does not tell."""
        if answer.token_ids is None:
            raise ValueError("the answer has no token_ids: use --api chat with this server")
        self.ids += answer.token_ids

    def body(self) -> dict[str, Any]:
        """``prompt``, and that ids are wanted back."""
        return {"prompt": self.ids, "return_token_ids": True}

    def copy(self) -> TokenHistory:
        """A branch that begins here."""
        return TokenHistory(list(self.ids))


def words(count: int, random: Random) -> str:
    """So many words of four letters."""
    return " ".join(random.choices(_WORDS, k=count))
