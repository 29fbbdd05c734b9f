"""The folder of the link socket: whoever can open the socket can attach as an engine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError


def require_private_folder(socket: Address) -> None:
    """Make the folder of ``socket`` with mode 0700 if it is not there.

    Raises ConfigError unless it is a folder of this user that nobody else may enter.
    """
    folder = Path(socket.unix_path).parent
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"link_socket: {folder}: {error.strerror or error}") from error
    if status.st_uid != os.geteuid():
        raise ConfigError(f"link_socket: {folder} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"link_socket: {folder} must have mode 0700: others can enter it")
