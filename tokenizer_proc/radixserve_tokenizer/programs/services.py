"""What ops need to be carried out: one bundle, made by the core and handed to its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from radixserve_tokenizer.programs.budget import BudgetWatch
from radixserve_tokenizer.programs.generation import Generation
from radixserve_tokenizer.programs.groups import Groups
from radixserve_tokenizer.programs.memory import TurnMemory
from radixserve_tokenizer.programs.retelling import Retellings
from radixserve_tokenizer.programs.runnable import Runnable
from radixserve_tokenizer.programs.sampling import SamplingLimits
from radixserve_tokenizer.programs.scoring import Scoring

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.config import TokenizerConfig
    from radixserve_tokenizer.link import RuntimeLink
    from radixserve_tokenizer.programs.admission import Admission
    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.programs.detached import Detached
    from radixserve_tokenizer.programs.grammars import GrammarDesk
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.programs.transcript import TextModel
    from radixserve_tokenizer.tenants.accounts import Accounts
    from radixserve_tokenizer.tenants.identity import Tenants
    from radixserve_tokenizer.tenants.leases import Leases
    from radixserve_tokenizer.tenants.publics import PublicPrefixes
    from radixserve_tokenizer.tenants.slots import Slots

Task: TypeAlias = Generation | Scoring


@dataclass(slots=True)
class Services:
    """Shared by the parts of one core."""

    config: TokenizerConfig
    text: TextModel
    link: RuntimeLink
    admission: Admission
    grammars: GrammarDesk
    clock: Callable[[], float]
    accounts: Accounts
    tenants: Tenants
    slots: Slots
    leases: Leases
    publics: PublicPrefixes
    detached: Detached
    groups: Groups = field(init=False)
    memory: TurnMemory = field(init=False)
    runnable: Runnable = field(default_factory=Runnable)
    """Branches whose next op may be able to begin."""
    gated: list[Branch] = field(default_factory=list["Branch"])
    """Branches whose next op needs to know the model, which the runtime has not told yet."""
    undecided: dict[Program, None] = field(default_factory=dict["Program", None])
    """Programs whose first frame is in; they are admitted or refused as soon as its appends have been carried out."""
    retellings: Retellings = field(default_factory=Retellings)
    """Detached programs that tell a new connection what they kept."""
    budgets: BudgetWatch = field(default_factory=BudgetWatch)
    tasks: dict[int, Task] = field(default_factory=dict[int, Task])
    """By runtime request."""
    _last_id: int = 0

    def __post_init__(self) -> None:
        self.groups = Groups(self.next_id)
        self.memory = TurnMemory(self.config.max_remembered_ids)

    def next_id(self) -> int:
        """A number that no runtime branch or request has had."""
        self._last_id += 1
        return self._last_id

    @property
    def limits(self) -> SamplingLimits:
        """What sampling arguments are held against."""
        return SamplingLimits(
            vocab_size=self.text.tokenizer.vocab_size,
            max_stop_strings=self.config.max_stop_strings,
            max_stop_bytes=self.config.max_stop_bytes,
            max_logit_bias=self.config.max_logit_bias,
            max_logprobs=self.config.max_logprobs,
        )
