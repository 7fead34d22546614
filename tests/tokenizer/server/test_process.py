"""The real process: settings on standard input, a real tokenizer folder, the real grammar compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TokenizerConfig
from tests.tokenizer.programs.harness import TEMPLATE, FakeRuntime, append, gen, says, tokenizer
from tests.tokenizer.server.rig import PATIENCE_S, RawClient, RuntimeThread, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = [sys.executable, "-m", "radixserve_tokenizer"]


def write_model(folder: Path) -> None:
    """A Hugging Face folder with the harness's tokenizer and nothing else."""
    engine = tokenizer()._engine  # pyright: ignore[reportPrivateUsage]
    spec = json.loads(engine.to_str())
    spec["added_tokens"] = [
        {
            "id": number,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for text, number in tokenizer().special.items()
    ]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))


class Process:
    """The process with a scripted runtime at its other end."""

    def __init__(self, folder: Path) -> None:
        write_model(folder)
        self.settings = TokenizerConfig(
            model=str(folder),
            model_name="tiny",
            socket=f"ipc://{folder / 'clients.sock'}",
            runtime_socket=f"ipc://{folder / 'runtime.sock'}",
        )
        self.runtime = RuntimeThread(self.settings.runtime_socket, FakeRuntime())
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(self.settings))
        self.process.stdin.close()
        self.client = RawClient(self.settings.socket)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.client.close()
        self.runtime.stop()


@pytest.fixture
def running() -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        it = Process(Path(folder))
        try:
            yield it
        finally:
            it.close()


def test_a_program_a_grammar_and_a_polite_end(running: Process) -> None:
    client = running.client
    welcome = client.greet()
    assert (welcome.model.name, welcome.model.eos_token_ids, welcome.model.has_chat_template) == ("tiny", (1, 2), True)
    running.runtime.runtime.scripts.append(says("AB"))
    client.send(
        wire.Open(program=1), append(0, "hi", role="user"), gen(1), gen(2, constraint=wire.Constraint(kind="regex", source="a+"))
    )
    assert client.wait(wire.Done, op=1).value == "AB"
    assert client.wait(wire.Done, op=2)
    client.send(wire.Open(program=2), append(0, "hi", program=2))
    client.send(gen(1, program=2, constraint=wire.Constraint(kind="json_schema", source="{")))
    failed = client.wait(wire.Failed)
    assert (failed.status, failed.code) == (400, "invalid_grammar")
    running.process.send_signal(signal.SIGTERM)
    assert client.wait(wire.Goodbye)
    assert running.process.wait(PATIENCE_S) == 0


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    write_model(tmp_path)
    settings = TokenizerConfig(
        model=str(tmp_path), model_name="tiny", socket=f"ipc://{tmp_path / 'c'}", runtime_socket=f"ipc://{tmp_path / 'r'}"
    )
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE)\n"
        "p.stdin.write(sys.stdin.buffer.read()); p.stdin.close()\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(msgspec.json.encode(settings))
    parent.stdin.close()
    child = int(parent.stdout.readline())
    eventually(lambda: (tmp_path / "c").exists())  # it serves
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A container without an init leaves the dead unburied: that is no running process either.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize(
    "config", [b"", b"{}", b"not json", b'{"model":"/no/such","model_name":"m","socket":"ipc://s","runtime_socket":"ipc://r"}']
)
def test_settings_that_are_no_use_end_it_at_once(config: bytes) -> None:
    done = subprocess.run(COMMAND, input=config, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 78
    assert b"tokenizer:" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_runtime_that_comes_late_is_waited_for(running: Process) -> None:
    running.runtime.stop()
    time.sleep(0.2)
    running.runtime = RuntimeThread(running.settings.runtime_socket, FakeRuntime(epoch="late"))
    running.client.greet()
    running.client.send(wire.Open(program=1), append(0, "x"), gen(1))
    assert running.client.wait(wire.Done).value == "ok"
