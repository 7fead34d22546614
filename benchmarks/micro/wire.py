"""CPU time and size of what crosses the sockets: frames of both protocols, encoded and decoded as the processes do it.

python -m benchmarks.micro.wire
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_lang.frames import encode_message, join_frame
from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Case:
    """A frame: how it is made, and how it is read."""

    name: str
    num_messages: int
    encode: Callable[[], bytes]
    decode: Callable[[bytes], object]


def cases(branches: int = 64, prompt_tokens: int = 1024) -> list[Case]:
    """A fork that is sent, its generations on their way to the runtime, one step's tokens, and these as deltas."""
    program: list[wire.FromClient] = [
        wire.Open(program=1, seed=7),
        wire.Append(program=1, op=0, branch=0, role="user", parts=(wire.Text(text="A question. " * 40),)),
        wire.Fork(program=1, op=1, branch=0, first=1, count=branches),
        *(
            wire.Gen(program=1, op=2 + one, branch=1 + one, var=one, sampling=wire.Sampling(max_tokens=64, temperature=0.7))
            for one in range(branches)
        ),
    ]
    ids = tuple(range(20_000, 20_000 + prompt_tokens))
    hashed = rt.log_hash(ids)
    requests: list[rt.ToRuntime] = [
        rt.Generate(
            request_id=one,
            branch_id=one,
            base=rt.Base(length=prompt_tokens, hash=hashed),
            sampling=rt.Sampling(max_tokens=64, seed=one, temperature=0.7),
            owner=rt.Owner(tenant="a", program=1),
        )
        for one in range(branches)
    ]
    prompt: list[rt.ToRuntime] = [
        rt.Generate(request_id=0, branch_id=0, base=rt.Base(new_ids=ids), sampling=rt.Sampling(max_tokens=64, seed=0))
    ]
    tokens: list[rt.FromRuntime] = [rt.Tokens(request_id=one, token_ids=(20_000 + one,)) for one in range(branches)]
    deltas: list[wire.Event] = [
        wire.Delta(program=1, op=2 + one, var=one, text=" harbour", token_ids=(20_000 + one,)) for one in range(branches)
    ]
    return [
        Case(f"client -> tokenizer: fork of {branches}", len(program), lambda: _client_frame(program), wire.decode_from_client),
        Case(f"tokenizer -> runtime: {branches} branches", branches, lambda: rt.encode(requests), rt.decode_to_runtime),
        Case(f"tokenizer -> runtime: a prompt of {prompt_tokens}", 1, lambda: rt.encode(prompt), rt.decode_to_runtime),
        Case(f"runtime -> tokenizer: a step of {branches}", branches, lambda: rt.encode(tokens), rt.decode_from_runtime),
        Case(f"tokenizer -> client: {branches} deltas", branches, lambda: wire.encode(deltas), wire.decode_events),
    ]


def _client_frame(messages: list[wire.FromClient]) -> bytes:
    """As the client does it: each message is checked where it is made."""
    return join_frame([encode_message(message) for message in messages])


def cpu_s(run: Callable[[], object], repeats: int) -> float:
    """Median thread CPU seconds of a call."""
    took: list[float] = []
    for _ in range(repeats):
        began = time.thread_time()
        run()
        took.append(time.thread_time() - began)
    return statistics.median(took)


def both_ways() -> None:
    """Every case once, there and back."""
    for case in cases():
        case.decode(case.encode())


def main() -> None:
    """One line a frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    print(f"{'frame':42}{'messages':>9}{'bytes':>8}{'encode us':>11}{'decode us':>11}")
    for case in cases(options.branches, options.prompt_tokens):
        frame = case.encode()
        encode_s = cpu_s(case.encode, options.repeats)
        decode_s = cpu_s(lambda case=case, frame=frame: case.decode(frame), options.repeats)
        print(f"{case.name:42}{case.num_messages:>9}{len(frame):>8}{1e6 * encode_s:>11.1f}{1e6 * decode_s:>11.1f}")


if __name__ == "__main__":
    main()
