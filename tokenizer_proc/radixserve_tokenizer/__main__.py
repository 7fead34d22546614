"""`python -m radixserve_tokenizer`: settings as JSON on standard input; ends with SIGTERM, or with its parent."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from radixserve_tokenizer.collector import Collector
from radixserve_tokenizer.config import TokenizerConfig
from radixserve_tokenizer.grammar.service import GrammarService
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.server import Server
from radixserve_tokenizer.tenants.identity import TenantSettingsError
from radixserve_tokenizer.tenants.store import AccountFileError
from radixserve_tokenizer.text.errors import TemplateError, TokenizerLoadError
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.text.template import load_template
from radixserve_tokenizer.tools.choose import choose_format
from radixserve_tokenizer.tools.reasoning import reasoning_marks
from radixserve_tokenizer.turns import take_short_turns
from radixserve_tokenizer.wire import AddressError

logger = logging.getLogger("radixserve_tokenizer")

#: Trying again with the same settings is no use.
_EXIT_BAD_SETTINGS = 78
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve; returns the exit status."""
    _die_with_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    try:
        config = msgspec.json.decode(sys.stdin.buffer.read(), type=TokenizerConfig)
        logging.getLogger().setLevel(config.log_level.upper())
        text = _load(config)
    except (ValueError, TokenizerLoadError) as error:
        logger.error("%s", error)
        return _EXIT_BAD_SETTINGS
    compiler = GrammarService(
        text.grammar_vocabulary,
        text.tokenizer.eos_token_ids,
        timeout_s=config.compile_timeout_s,
        memory_mb=config.compile_memory_mb,
    )
    try:
        server = Server(config, text, compiler, compiler.fileno())
        signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
        signal.signal(signal.SIGINT, lambda number, frame: server.stop())
        Collector().install()  # the vocabulary is for ever
        take_short_turns()
        server.run()
    except (AddressError, AccountFileError, TenantSettingsError) as error:
        logger.error("%s", error)
        return _EXIT_BAD_SETTINGS
    finally:
        compiler.close()
    return 0


def _load(config: TokenizerConfig) -> TextModel:
    started = time.monotonic()
    tokenizer = load_tokenizer(Path(config.model))
    tool_format = choose_format(tokenizer, config.tool_format)
    try:
        template = load_template(tokenizer, tool_format)
    except TemplateError as error:
        logger.warning("the model's chat template can't be used, so only plain text is served: %s", error)
        template = None
    logger.info("tokenizer of %d tokens loaded in %.1f s", tokenizer.vocab_size, time.monotonic() - started)
    logger.info("tool calls are written in the format %r", tool_format.name)
    return TextModel(tokenizer, template, tool_format, reasoning_marks(tokenizer))


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, so that none is left behind."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before the kernel knew


if __name__ == "__main__":
    sys.exit(main())
