"""What a new connection is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from radixserve_runtime.protocol import ModelInfo
    from radixserve_tokenizer.config import TokenizerConfig
    from radixserve_tokenizer.programs.transcript import TextModel


def welcome(config: TokenizerConfig, text: TextModel, model: ModelInfo, epoch: str) -> wire.Welcome:
    """The model behind the connection, and how often to speak."""
    tokenizer = text.tokenizer
    card = wire.ModelCard(
        name=config.model_name,
        architecture=model.architecture,
        max_context=model.max_context,
        vocab_size=tokenizer.vocab_size,
        dtype=model.dtype,
        fingerprint=tokenizer.fingerprint,
        eos_token_ids=tokenizer.eos_token_ids,
        has_chat_template=text.template is not None,
    )
    return wire.Welcome(
        version=wire.PROTOCOL_VERSION,
        epoch=epoch,
        model=card,
        heartbeat_s=config.heartbeat_s,
        client_timeout_s=config.client_timeout_s,
    )
