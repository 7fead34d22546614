"""The `radixserve` object and its headers: groups, parents, and KV that is kept between two requests of a program."""

from __future__ import annotations

import time

import pytest

from radixserve.http.config import HttpConfig
from radixserve.http.parents import Parents
from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import Goodbye, Lease, LeaseLost
from tests.http.fake_engine import FakeClient, failing, refusing
from tests.http.harness import CHAT, TEXT, events, serving

HI = [{"role": "user", "content": "hi"}]


def ask(api, extension=None, *, stream=False, key="k", **headers):
    body = {"model": "tiny", "messages": HI, "stream": stream}
    if extension is not None:
        body["radixserve"] = extension
    answer = api(CHAT, body, authorization=f"Bearer {key}", **headers)
    if stream and answer.status_code == 200:
        assert events(answer)[-1] == "[DONE]"
    return answer


def leases(channel):
    return [message for message in channel.messages if isinstance(message, Lease)]


def groups(fake):
    return [channel.opening["group"] for channel in fake.channels]


def test_nothing_said(api, fake):
    ask(api)
    assert groups(fake) == [""]
    assert leases(fake.last) == []
    assert fake.last.closed.wait(5)


def test_a_program_is_a_group(api, fake):
    ask(api, {"program_id": "p"})
    ask(api, x_radixserve_program_id="q")
    ask(api, {"program_id": "p"}, x_radixserve_program_id="q")  # the body is nearer
    api(TEXT, {"model": "tiny", "prompt": "x", "radixserve": {"program_id": "r"}})
    assert groups(fake) == ["p", "q", "p", "r"]
    assert all(channel.closed.wait(5) for channel in fake.channels)


def test_what_a_program_starts_is_of_its_group(api, fake):
    ask(api, {"program_id": "child", "parent": "root"})
    ask(api, {"program_id": "grandchild", "parent": "child"})
    ask(api, {"program_id": "grandchild"})  # it is remembered
    ask(api, {"parent": "grandchild"})  # a single request of a program's
    ask(api, {"program_id": "root"})
    ask(api, {"program_id": "grandchild"}, key="other")  # another key knows nothing of it
    assert groups(fake) == ["root", "root", "root", "root", "root", "grandchild"]


@pytest.mark.parametrize("stream", [False, True])
def test_kept_until_the_next_request(api, fake, stream):
    assert ask(api, {"program_id": "p", "lease_s": 60}, stream=stream).status_code == 200
    first = fake.last
    assert [(one.branch, one.ttl_s) for one in leases(first)] == [(0, 60.0)]
    assert not first.closed.wait(0.1)
    ask(api, {"program_id": "other"})
    ask(api, {"program_id": "p"}, key="other")
    assert not first.closed.is_set()
    ask(api, {"program_id": "p"}, stream=stream)
    assert first.closed.is_set()  # the next one holds its pages itself
    assert fake.last.closed.wait(5)


def test_by_headers(api, fake):
    assert ask(api, x_radixserve_program_id="p", x_radixserve_lease_s="2.5").status_code == 200
    assert [one.ttl_s for one in leases(fake.last)] == [2.5]
    assert not fake.last.closed.is_set()


def test_its_time_ends(api, fake):
    ask(api, {"program_id": "p", "lease_s": 0.2})
    assert not fake.last.closed.is_set()
    assert fake.last.closed.wait(5)


@pytest.mark.parametrize("event", [LeaseLost(program=0, branch=0), Goodbye(epoch="1", message="bye")])
def test_nothing_is_left_to_keep(api, fake, event):
    ask(api, {"program_id": "p", "lease_s": 60})
    fake.last.say(event)
    assert fake.last.closed.wait(5)


def test_a_lease_that_is_lost_at_once(api, fake):
    play = fake.handler

    def handler(channel, messages):
        play(channel, messages)
        channel.say(LeaseLost(program=channel.program, branch=0))

    fake.handler = handler
    assert ask(api, {"program_id": "p", "lease_s": 60}).status_code == 200
    assert fake.last.closed.wait(5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_keeps_nothing_but_what_was(api, fake, stream):
    ask(api, {"program_id": "p", "lease_s": 60})
    first = fake.last
    fake.handler = refusing(429, "rate_limit_exceeded", "slow down", 1.0)
    assert ask(api, {"program_id": "p", "lease_s": 60}, stream=stream).status_code == 429
    assert fake.last.closed.wait(5)
    assert not first.closed.is_set()  # the client tries again, and it is still there
    fake.handler = failing("forward_failed", "oh")
    assert ask(api, {"program_id": "q", "lease_s": 60}).status_code == 500
    assert fake.last.closed.wait(5)


def test_bounds_and_shutdown():
    client = FakeClient()
    settings = HttpConfig(served_names=("tiny",), max_leases_per_tenant=2, max_leases=3)
    with serving(client, settings) as call:
        for number, key in enumerate(["a", "a", "a", "b", "b"]):
            assert ask(call, {"program_id": f"p{number}", "lease_s": 60}, key=key).status_code == 200
        deadline = time.monotonic() + 5
        while [one.closed.is_set() for one in client.channels] != [True, True, False, False, False]:
            assert time.monotonic() < deadline, [one.closed.is_set() for one in client.channels]
            time.sleep(0.01)
    assert all(one.closed.wait(5) for one in client.channels)
    client.close()


@pytest.mark.parametrize(
    ("extension", "param"),
    [
        (5, "radixserve"),
        ({"program": "x"}, "radixserve"),
        ({"program_id": ""}, "radixserve.program_id"),
        ({"program_id": 5}, "radixserve.program_id"),
        ({"program_id": "x" * 129}, "radixserve.program_id"),
        ({"program_id": "a\nb"}, "radixserve.program_id"),
        ({"program_id": "a", "parent": "a"}, "radixserve.parent"),
        ({"parent": ["a"]}, "radixserve.parent"),
        ({"lease_s": 5}, "radixserve.lease_s"),
        ({"program_id": "p", "lease_s": -1}, "radixserve.lease_s"),
        ({"program_id": "p", "lease_s": 3601}, "radixserve.lease_s"),
        ({"program_id": "p", "lease_s": True}, "radixserve.lease_s"),
        ({"program_id": "p", "lease_s": "5"}, "radixserve.lease_s"),
    ],
)
def test_what_it_may_not_be(api, fake, extension, param):
    answer = ask(api, extension)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert fake.channels == []


def test_headers_that_it_may_not_be(api, fake):
    assert ask(api, x_radixserve_program_id="p", x_radixserve_lease_s="soon").json()["error"]["param"] == "radixserve.lease_s"
    assert ask(api, x_radixserve_program_id="p", x_radixserve_lease_s="nan").status_code == 400
    assert ask(api, x_radixserve_program_id="x" * 200).json()["error"]["param"] == "radixserve.program_id"
    assert fake.channels == []


def test_one_choice_is_kept(api, fake):
    body = {"model": "tiny", "messages": HI, "n": 2, "radixserve": {"program_id": "p", "lease_s": 5}}
    assert api(CHAT, body).json()["error"]["param"] == "radixserve.lease_s"
    assert api(TEXT, {"model": "tiny", "prompt": ["a", "b"], "radixserve": body["radixserve"]}).status_code == 400
    assert fake.channels == []


# ---- whose it is ----------------------------------------------------------------------------------------------------


@pytest.fixture
def one_tenant(fake):
    """The keys old and new are one tenant's, "wrong" is nobody's, and every other a tenant's of its own."""

    def tenant(body):
        if body["api_key"] == "wrong":
            raise QueryFailedError(401, "no such key")
        return {"tenant": "a" if body["api_key"] in ("old", "new") else body["api_key"]}

    fake.answers["tenant"] = tenant
    return fake


def test_all_keys_of_a_tenant_are_one(api, one_tenant):
    ask(api, {"program_id": "child", "parent": "root", "lease_s": 60}, key="old")
    first = one_tenant.last
    ask(api, {"program_id": "child"}, key="new")
    assert groups(one_tenant) == ["root", "root"]
    assert first.closed.is_set()  # its lease was the tenant's


def test_nothing_is_remembered_of_a_wrong_key(one_tenant):
    settings = HttpConfig(served_names=("tiny",), max_parents_per_tenant=2, max_parents=2)
    with serving(one_tenant, settings) as call:
        ask(call, {"program_id": "child", "parent": "root"}, key="old")
        for number in range(5):
            for stream in (False, True):
                answer = ask(call, {"program_id": f"p{number}", "parent": "x"}, key="wrong", stream=stream)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert len(one_tenant.channels) == 1  # the engine was not even asked to open one
        ask(call, {"program_id": "child"}, key="old")
    assert groups(one_tenant) == ["root", "root"]


def test_the_engine_does_not_say_who_asks(api, fake):
    fake.answers["tenant"] = QueryFailedError(503, "gone")
    assert ask(api, {"program_id": "p"}).status_code == 503
    assert ask(api).status_code == 200  # who tells nothing of a program needs no name


def test_one_tenant_forgets_its_own_parents_first():
    parents = Parents(max_per_tenant=3, max_all=5)
    for tenant, count in (("small", 2), ("large", 10)):
        for number in range(count):
            assert parents.root(tenant, f"p{number}", "root") == "root"
    assert len(parents) == 5
    assert [parents.root("small", f"p{number}", "") for number in range(2)] == ["root", "root"]
    assert [parents.root("large", f"p{number}", "") for number in range(6, 10)] == ["p6", "root", "root", "root"]
    assert parents.root("third", "p0", "root") == "root"
    assert len(parents) == 5
    assert [parents.root("large", f"p{number}", "") for number in range(7, 10)] == ["p7", "root", "root"]  # it had most
    assert [parents.root("small", f"p{number}", "") for number in range(2)] == ["root", "root"]
    assert parents.root("small", "p2", "p1") == "root"  # now it has most, and loses what was named longest ago
    assert [parents.root("small", "", f"p{number}") for number in range(3)] == ["p0", "root", "root"]
