"""The tenants file on disk: read, change and replace as one step, whoever else does the same."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.tenants.edit import EditError
from radixserve.tenants.file import parse_tenants

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_NEW_FILE_MODE = 0o600


def update(path: Path, change: Callable[[str], str]) -> None:
    """Replace the file's text by `change` of it; a missing file counts as empty and gets mode 0600.

    The result must be a valid tenants file. It appears whole or not at all; an existing file keeps its mode and owner, and a
    symbolic link stays one. Raises `TenantsFileError`.
    """
    target = Path(os.path.realpath(path))
    try:
        with _locked(target.parent):
            before = _read(target)
            # What is wrong already is told as such, not as a fault of the edit.
            parse_tenants(before, path)
            text = change(before)
            parse_tenants(text, path)
            _replace(target, text)
    except OSError as error:
        raise EditError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise EditError(f"{path}: not UTF-8: {error}") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """One editor at a time. The folder is locked, not the file: the file is another one after each edit."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            _take_over(file.fileno(), path)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _take_over(handle: int, path: Path) -> None:
    """The mode and owner of the file that is replaced, so that a server that could read it still can."""
    try:
        old = path.stat()
    except FileNotFoundError:
        os.fchmod(handle, _NEW_FILE_MODE)
        return
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, old.st_mode & 0o777)
