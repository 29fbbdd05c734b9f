"""Output that can not be written: a full disk, or a reader that has gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_UNWRITTEN = 1
_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@contextmanager
def output_is_written() -> Iterator[None]:
    """See that what the block prints is written before it is left.

    If it can not be, the process ends with status 1: after one line on stderr, or without a word
    where the reader has gone, as after ``| head``.
    """
    if sys.stdout is None:  # closed: what is printed then fails, rather than vanishes
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, *_FAILURES):
            raise
        # What is still buffered would fail again when the interpreter ends.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if error.errno != errno.EPIPE:
            where = error.filename or "the output"
            print(f"contraflow: can not write {where}: {error.strerror}", file=sys.stderr)
        sys.exit(EXIT_UNWRITTEN)
