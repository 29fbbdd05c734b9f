"""Pages of ordered collections. A page token names the last key of the page before."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Mapping
from typing import TypeVar

from contraflow.core.errors import InvalidArgument

ValueT = TypeVar("ValueT")


def page(
    values: Mapping[str, ValueT], size: int, token: str, max_size: int
) -> tuple[list[ValueT], str]:
    """The values after the token, ordered by key, and the token of the next page or "".

    ``size`` zero or above ``max_size`` means ``max_size``. Raises InvalidArgument for a bad
    token. What comes and goes between two pages may be missed; nothing is repeated.
    """
    keys = sorted(values)
    start = bisect_right(keys, _decode(token)) if token else 0
    chosen = keys[start : start + min(size or max_size, max_size)]
    more = bool(chosen) and chosen[-1] != keys[-1]
    return [values[key] for key in chosen], _encode(chosen[-1]) if more else ""


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument("the page token is not one of ours", field="page_token") from error
