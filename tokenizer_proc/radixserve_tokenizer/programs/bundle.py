"""Makes what the parts of a core share, by its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from radixserve_tokenizer.programs.admission import Admission
from radixserve_tokenizer.programs.detached import Detached
from radixserve_tokenizer.programs.grammars import GrammarDesk
from radixserve_tokenizer.programs.services import Services
from radixserve_tokenizer.tenants.accounts import Accounts
from radixserve_tokenizer.tenants.identity import Tenants
from radixserve_tokenizer.tenants.leases import Leases
from radixserve_tokenizer.tenants.publics import PublicPrefixes
from radixserve_tokenizer.tenants.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.config import TokenizerConfig
    from radixserve_tokenizer.link import RuntimeLink
    from radixserve_tokenizer.programs.grammars import Compiler
    from radixserve_tokenizer.programs.transcript import TextModel


def build_services(
    config: TokenizerConfig, text: TextModel, link: RuntimeLink, compiler: Compiler, clock: Callable[[], float]
) -> Services:
    """The parts of one core. Raises `TenantSettingsError` and `AccountFileError`."""
    accounts = Accounts(Path(config.usage_db) if config.usage_db else None)
    slots = Slots()
    admission = Admission(
        max_programs=config.max_programs,
        max_queued=config.max_queued,
        max_queued_tokens=config.max_queued_tokens,
        slots=slots,
    )
    return Services(
        config=config,
        text=text,
        link=link,
        admission=admission,
        grammars=GrammarDesk(compiler),
        clock=clock,
        accounts=accounts,
        tenants=Tenants(config.tenants, accounts, clock()),
        slots=slots,
        leases=Leases(link, clock),
        publics=PublicPrefixes(config.public_prefixes, text),
        detached=Detached(config),
    )
