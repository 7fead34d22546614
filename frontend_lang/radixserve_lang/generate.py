"""`s.gen`: its types. What they are made into is in asking.py and state.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypeVar, overload

from radixserve_lang.asking import asked
from radixserve_lang.sampling import SamplingArgs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from pydantic import TypeAdapter
    from typing_extensions import TypeForm

    from radixserve_lang.asking import Asked
    from radixserve_lang.calls import Call
    from radixserve_lang.tools import AnyTool
    from radixserve_lang.var import Var

T = TypeVar("T")
R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
R5 = TypeVar("R5")
R6 = TypeVar("R6")

# Written out by their number: a checker that joins types instead of uniting them would forget which results there are.
Two: TypeAlias = "tuple[AnyTool[R1], AnyTool[R2]]"
Three: TypeAlias = "tuple[AnyTool[R1], AnyTool[R2], AnyTool[R3]]"
Four: TypeAlias = "tuple[AnyTool[R1], AnyTool[R2], AnyTool[R3], AnyTool[R4]]"
Five: TypeAlias = "tuple[AnyTool[R1], AnyTool[R2], AnyTool[R3], AnyTool[R4], AnyTool[R5]]"
Six: TypeAlias = "tuple[AnyTool[R1], AnyTool[R2], AnyTool[R3], AnyTool[R4], AnyTool[R5], AnyTool[R6]]"
Some: TypeAlias = "Sequence[AnyTool[R]]"
TwoPlain: TypeAlias = "tuple[Callable[..., R1], Callable[..., R2]]"
ThreePlain: TypeAlias = "tuple[Callable[..., R1], Callable[..., R2], Callable[..., R3]]"
SomePlain: TypeAlias = "Sequence[Callable[..., R]]"


class Retried(SamplingArgs, total=False):
    """Sampling arguments, and how often to try again."""

    retries: int
    """When the value does not fit its type or is refused by `validate`: how many more attempts, each with the next seed (0)."""


class OneCall(Retried, total=False):
    """A call, and nothing else."""

    tool_choice: Literal["required"]
    """ "required": the model has to make a call; "auto": it may write text instead ("required")."""
    parallel: Literal[False]
    """The model may make several calls in one turn (False)."""


class MaybeCall(Retried, total=False):
    """A call or text."""

    tool_choice: Required[Literal["auto"]]
    parallel: Literal[False]


class Calls(Retried, total=False):
    """One call or more."""

    tool_choice: Literal["required"]
    parallel: Required[Literal[True]]


class MaybeCalls(Retried, total=False):
    """Calls or text."""

    tool_choice: Required[Literal["auto"]]
    parallel: Required[Literal[True]]


class Generate:
    """Generate after what the branch holds, append it, and return its value-to-be.

    `json` makes the output a value of that type: a pydantic model, dataclass, TypedDict, Literal, union, primitive,
    `list[...]`, TypeAdapter or JSON Schema dict. `regex` and `grammar` (EBNF) constrain the text. `tools` makes it a call of
    one of these (tools or plain functions). At most one of the four.

    `validate` is called with the value and refuses it by raising ValueError or returning False. A value that is refused, or
    that is none of its type, is taken back and generated again up to `retries` times, each time with the next seed; what
    follows on the branch waits for that. `n` makes so many branches, each with a value of its own. The other arguments are
    those of `SamplingArgs`.
    """

    def __init__(self, make: Callable[[Asked], Any]) -> None:
        self._make = make

    @overload
    def __call__(
        self, *, json: type[T], n: None = None, validate: Callable[[T], object] | None = None, **options: Unpack[Retried]
    ) -> Var[T]: ...
    @overload
    def __call__(
        self, *, json: TypeAdapter[T], n: None = None, validate: Callable[[T], object] | None = None, **options: Unpack[Retried]
    ) -> Var[T]: ...
    @overload
    def __call__(
        self,
        *,
        json: Mapping[str, Any],
        n: None = None,
        validate: Callable[[Any], object] | None = None,
        **options: Unpack[Retried],
    ) -> Var[Any]: ...
    @overload
    def __call__(
        self, *, json: TypeForm[T], n: None = None, validate: Callable[[T], object] | None = None, **options: Unpack[Retried]
    ) -> Var[T]: ...
    @overload
    def __call__(
        self, *, regex: str, n: None = None, validate: Callable[[str], object] | None = None, **options: Unpack[Retried]
    ) -> Var[str]: ...
    @overload
    def __call__(
        self, *, grammar: str, n: None = None, validate: Callable[[str], object] | None = None, **options: Unpack[Retried]
    ) -> Var[str]: ...
    @overload
    def __call__(
        self, *, n: None = None, validate: Callable[[str], object] | None = None, **options: Unpack[Retried]
    ) -> Var[str]: ...
    @overload
    def __call__(
        self, *, json: type[T], n: int, validate: Callable[[T], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[T], ...]: ...
    @overload
    def __call__(
        self, *, json: TypeAdapter[T], n: int, validate: Callable[[T], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[T], ...]: ...
    @overload
    def __call__(
        self, *, json: Mapping[str, Any], n: int, validate: Callable[[Any], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[Any], ...]: ...
    @overload
    def __call__(
        self, *, json: TypeForm[T], n: int, validate: Callable[[T], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[T], ...]: ...
    @overload
    def __call__(
        self, *, regex: str, n: int, validate: Callable[[str], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[str], ...]: ...
    @overload
    def __call__(
        self, *, grammar: str, n: int, validate: Callable[[str], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[str], ...]: ...
    @overload
    def __call__(
        self, *, n: int, validate: Callable[[str], object] | None = None, **options: Unpack[Retried]
    ) -> tuple[Var[str], ...]: ...
    @overload
    def __call__(self, *, tools: Two[R1, R2], **options: Unpack[OneCall]) -> Var[Call[R1 | R2]]: ...
    @overload
    def __call__(self, *, tools: Two[R1, R2], **options: Unpack[MaybeCall]) -> Var[Call[R1 | R2] | str]: ...
    @overload
    def __call__(self, *, tools: Two[R1, R2], **options: Unpack[Calls]) -> Var[list[Call[R1 | R2]]]: ...
    @overload
    def __call__(self, *, tools: Two[R1, R2], **options: Unpack[MaybeCalls]) -> Var[list[Call[R1 | R2]] | str]: ...
    @overload
    def __call__(self, *, tools: Three[R1, R2, R3], **options: Unpack[OneCall]) -> Var[Call[R1 | R2 | R3]]: ...
    @overload
    def __call__(self, *, tools: Three[R1, R2, R3], **options: Unpack[MaybeCall]) -> Var[Call[R1 | R2 | R3] | str]: ...
    @overload
    def __call__(self, *, tools: Three[R1, R2, R3], **options: Unpack[Calls]) -> Var[list[Call[R1 | R2 | R3]]]: ...
    @overload
    def __call__(self, *, tools: Three[R1, R2, R3], **options: Unpack[MaybeCalls]) -> Var[list[Call[R1 | R2 | R3]] | str]: ...
    @overload
    def __call__(self, *, tools: Four[R1, R2, R3, R4], **options: Unpack[OneCall]) -> Var[Call[R1 | R2 | R3 | R4]]: ...
    @overload
    def __call__(self, *, tools: Four[R1, R2, R3, R4], **options: Unpack[MaybeCall]) -> Var[Call[R1 | R2 | R3 | R4] | str]: ...
    @overload
    def __call__(self, *, tools: Four[R1, R2, R3, R4], **options: Unpack[Calls]) -> Var[list[Call[R1 | R2 | R3 | R4]]]: ...
    @overload
    def __call__(
        self, *, tools: Four[R1, R2, R3, R4], **options: Unpack[MaybeCalls]
    ) -> Var[list[Call[R1 | R2 | R3 | R4]] | str]: ...
    @overload
    def __call__(self, *, tools: Five[R1, R2, R3, R4, R5], **options: Unpack[OneCall]) -> Var[Call[R1 | R2 | R3 | R4 | R5]]: ...
    @overload
    def __call__(
        self, *, tools: Five[R1, R2, R3, R4, R5], **options: Unpack[MaybeCall]
    ) -> Var[Call[R1 | R2 | R3 | R4 | R5] | str]: ...
    @overload
    def __call__(
        self, *, tools: Five[R1, R2, R3, R4, R5], **options: Unpack[Calls]
    ) -> Var[list[Call[R1 | R2 | R3 | R4 | R5]]]: ...
    @overload
    def __call__(
        self, *, tools: Five[R1, R2, R3, R4, R5], **options: Unpack[MaybeCalls]
    ) -> Var[list[Call[R1 | R2 | R3 | R4 | R5]] | str]: ...
    @overload
    def __call__(
        self, *, tools: Six[R1, R2, R3, R4, R5, R6], **options: Unpack[OneCall]
    ) -> Var[Call[R1 | R2 | R3 | R4 | R5 | R6]]: ...
    @overload
    def __call__(
        self, *, tools: Six[R1, R2, R3, R4, R5, R6], **options: Unpack[MaybeCall]
    ) -> Var[Call[R1 | R2 | R3 | R4 | R5 | R6] | str]: ...
    @overload
    def __call__(
        self, *, tools: Six[R1, R2, R3, R4, R5, R6], **options: Unpack[Calls]
    ) -> Var[list[Call[R1 | R2 | R3 | R4 | R5 | R6]]]: ...
    @overload
    def __call__(
        self, *, tools: Six[R1, R2, R3, R4, R5, R6], **options: Unpack[MaybeCalls]
    ) -> Var[list[Call[R1 | R2 | R3 | R4 | R5 | R6]] | str]: ...
    @overload
    def __call__(self, *, tools: Some[R], **options: Unpack[OneCall]) -> Var[Call[R]]: ...
    @overload
    def __call__(self, *, tools: Some[R], **options: Unpack[MaybeCall]) -> Var[Call[R] | str]: ...
    @overload
    def __call__(self, *, tools: Some[R], **options: Unpack[Calls]) -> Var[list[Call[R]]]: ...
    @overload
    def __call__(self, *, tools: Some[R], **options: Unpack[MaybeCalls]) -> Var[list[Call[R]] | str]: ...
    @overload
    def __call__(self, *, tools: TwoPlain[R1, R2], **options: Unpack[OneCall]) -> Var[Call[R1 | R2]]: ...
    @overload
    def __call__(self, *, tools: TwoPlain[R1, R2], **options: Unpack[MaybeCall]) -> Var[Call[R1 | R2] | str]: ...
    @overload
    def __call__(self, *, tools: TwoPlain[R1, R2], **options: Unpack[Calls]) -> Var[list[Call[R1 | R2]]]: ...
    @overload
    def __call__(self, *, tools: TwoPlain[R1, R2], **options: Unpack[MaybeCalls]) -> Var[list[Call[R1 | R2]] | str]: ...
    @overload
    def __call__(self, *, tools: ThreePlain[R1, R2, R3], **options: Unpack[OneCall]) -> Var[Call[R1 | R2 | R3]]: ...
    @overload
    def __call__(self, *, tools: ThreePlain[R1, R2, R3], **options: Unpack[MaybeCall]) -> Var[Call[R1 | R2 | R3] | str]: ...
    @overload
    def __call__(self, *, tools: ThreePlain[R1, R2, R3], **options: Unpack[Calls]) -> Var[list[Call[R1 | R2 | R3]]]: ...
    @overload
    def __call__(
        self, *, tools: ThreePlain[R1, R2, R3], **options: Unpack[MaybeCalls]
    ) -> Var[list[Call[R1 | R2 | R3]] | str]: ...
    @overload
    def __call__(self, *, tools: SomePlain[R], **options: Unpack[OneCall]) -> Var[Call[R]]: ...
    @overload
    def __call__(self, *, tools: SomePlain[R], **options: Unpack[MaybeCall]) -> Var[Call[R] | str]: ...
    @overload
    def __call__(self, *, tools: SomePlain[R], **options: Unpack[Calls]) -> Var[list[Call[R]]]: ...
    @overload
    def __call__(self, *, tools: SomePlain[R], **options: Unpack[MaybeCalls]) -> Var[list[Call[R]] | str]: ...
    def __call__(self, **options: Any) -> Any:
        """Generate; see the class."""
        return self._make(asked(options))
