"""What the engine refuses or fails, as its clients hear it."""

from __future__ import annotations

import pytest

from radixserve.http.config import HttpConfig
from radixserve.http.responses import ErrorAnswer
from radixserve_lang.errors import ConnectionFailedError, QueryFailedError
from radixserve_tokenizer.protocol import Admitted, Delta, Done, Failed, Gen, Goodbye, Refused
from tests.http.fake_engine import FakeClient, Script, failing, refusing, scripted
from tests.http.harness import CHAT, TEXT, events, serving

BODIES = [(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}), (TEXT, {"model": "tiny", "prompt": "x"})]
EVERY_WAY = [(path, {**body, "stream": stream}) for path, body in BODIES for stream in (False, True)]


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
@pytest.mark.parametrize(("status", "kind"), [(503, "server_error"), (429, "rate_limit_error")])
def test_bug_24_refused_before_any_byte_of_a_stream(api, fake, path, body, status, kind):
    fake.handler = refusing(status, "overloaded", "too many", retry_after_s=2.2)
    answer = api(path, body)
    assert answer.status_code == status
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["content-type"] == "application/json"
    error = ErrorAnswer.model_validate_json(answer.content).error
    assert (error.code, error.type, error.message) == ("overloaded", kind, "too many")
    fake.handler = scripted(Script())
    assert api(path, body).status_code == 200


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_bug_24_retry_after_is_always_there(api, fake, path, body):
    fake.handler = refusing(503, "overloaded", "too many")
    assert int(api(path, body).headers["retry-after"]) >= 1


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_unknown_key(api, fake, path, body):
    fake.handler = refusing(401, "invalid_api_key", "unknown key")
    answer = api(path, body, authorization="Bearer nope")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert fake.last.opening["api_key"] == "nope"


def test_other_schemes(api, fake):
    assert api(*BODIES[0], authorization="Basic abc").status_code == 401
    assert fake.channels == []


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_bug_25_context_length(api, fake, path, body):
    message = "This model's maximum context length is 512 tokens, but the prompt has 513."
    fake.handler = failing("context_length_exceeded", message, status=400, param="messages")
    answer = api(path, body)
    assert answer.status_code == 400
    error = ErrorAnswer.model_validate_json(answer.content).error
    field = "messages" if path == CHAT else "prompt"
    assert (error.code, error.type, error.param) == ("context_length_exceeded", "invalid_request_error", field)
    assert error.message.startswith("This model's maximum context length is")
    assert fake.last.closed.wait(5)


def test_the_second_prompt_is_too_long(api, fake):
    """A list whose second prompt can't be served has its status too, streamed or not."""

    def handler(channel, messages):
        (scripted(Script()) if channel.program % 2 == 0 else failing("context_length_exceeded", "too long", status=400))(
            channel, messages
        )

    fake.handler = handler
    for stream in (False, True):
        assert api(TEXT, {"model": "tiny", "prompt": ["a", "b"], "stream": stream}).status_code == 400


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_failure_in_the_middle_of_a_stream(api, fake, path, body):
    fake.handler = failing("runtime_lost", "the runtime ended", status=503, after=Script())
    answer = api(path, {**body, "stream": True})
    assert answer.status_code == 200
    *chunks, last = events(answer)
    assert len(chunks) >= 3
    assert last == {"error": {"message": "the runtime ended", "type": "server_error", "param": None, "code": "runtime_lost"}}
    assert fake.last.closed.wait(5)


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_server_gone(api, fake, path, body):
    fake.handler = lambda channel, _: channel.say(Goodbye(epoch="1", message="restarting"))
    answer = api(path, body)
    assert answer.status_code == 503
    assert "retry-after" in answer.headers


def test_an_aborted_generation_is_no_answer(api, fake):
    fake.handler = scripted(Script(finish_reason="abort"))
    assert api(*BODIES[0]).status_code == 500


def test_one_failed_choice_fails_the_request(api, fake):
    def handler(channel, messages):
        gens = [one for one in messages if isinstance(one, Gen)]
        channel.say(Admitted(program=channel.program))
        for i, gen in enumerate(gens):
            if i == 1:
                channel.say(Failed(program=channel.program, op=gen.op, var=gen.var, code="forward_failed", message="no"))
            else:
                channel.say(Done(program=channel.program, op=gen.op, var=gen.var, value="x"))

    fake.handler = handler
    path, body = BODIES[0]
    assert api(path, {**body, "n": 3}).json()["error"]["code"] == "forward_failed"


def test_no_answer_at_all():
    client = FakeClient(handler=lambda channel, messages: None)
    with serving(client, HttpConfig(served_names=("tiny",), admission_timeout_s=0.05)) as call:
        answer = call(*BODIES[0])
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_timeout"
    assert client.last.closed.wait(5)
    client.close()


def test_loading():
    client = FakeClient(welcome_error=ConnectionFailedError("no server"))
    with serving(client, HttpConfig(connect_retry_s=0.01, query_timeout_s=0.05)) as call:
        for path, body in BODIES:
            answer = call(path, body)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "loading"
        assert call("/v1/models").status_code == 503
        assert call("/health").status_code == 503
        assert call("/metrics").status_code == 200
    client.close()


def test_a_factory_that_fails_at_first():
    client = FakeClient()
    attempts = []

    def factory():
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("not yet")
        return client

    with serving(factory, HttpConfig(connect_retry_s=0.01)) as call:
        path, body = BODIES[0]
        assert call(path, {**body, "model": "default"}).status_code == 200
    assert len(attempts) == 3
    assert not client.is_running()  # made by the app, so closed by it


def test_detokenize_fails(api, fake):
    fake.answers["detokenize"] = QueryFailedError(503, "no server")
    assert api(TEXT, {"model": "tiny", "prompt": [1], "echo": True}).status_code == 503


def test_a_client_that_raises(api, fake):
    fake.open = None
    answer = api(*BODIES[0])
    assert answer.status_code == 500
    assert ErrorAnswer.model_validate_json(answer.content).error.type == "server_error"
    assert "NoneType" not in answer.text


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/nothing", "GET", 404), ("/v1/nothing", "POST", 404), (CHAT, "GET", 405), ("/health", "DELETE", 405)],
)
def test_paths_and_methods_in_form(api, path, method, status):
    answer = api(path, method=method)
    assert answer.status_code == status
    ErrorAnswer.model_validate_json(answer.content)


def test_no_stream_byte_before_the_first_event(api, fake):
    """Admitted alone starts nothing: the failure after it still has its status."""

    def handler(channel, messages):
        for gen in [one for one in messages if isinstance(one, Gen)]:
            channel.say(Admitted(program=channel.program))
            channel.say(
                Failed(
                    program=channel.program,
                    op=gen.op,
                    var=gen.var,
                    code="bad_schema",
                    message="#/x",
                    status=400,
                    param="response_format",
                )
            )

    fake.handler = handler
    answer = api(CHAT, {**BODIES[0][1], "stream": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


def test_refused_after_another_program_began(api, fake):
    def handler(channel, messages):
        for gen in [one for one in messages if isinstance(one, Gen)]:
            if channel.program == 0:
                channel.say(Admitted(program=0))
                channel.say(Delta(program=0, op=gen.op, var=gen.var, text="x"))
            else:
                channel.say(Refused(program=channel.program, status=503, code="overloaded", message="full"))

    fake.handler = handler
    assert api(TEXT, {"model": "tiny", "prompt": ["a", "b"], "stream": True}).status_code == 503
    assert all(channel.closed.wait(5) for channel in fake.channels)
