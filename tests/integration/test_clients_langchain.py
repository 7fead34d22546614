"""LangChain's own standard tests of chat models, run with langchain-openai against the real model.

What a model of 135 million parameters can't know is marked, with the reason; nothing is marked for what the server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from tests.integration.conftest import Server

# The suite's asynchronous tests carry no mark of their own.
pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore:.*is marked with")]


class TestChatModel(ChatModelIntegrationTests):
    """`ChatOpenAI` with our address."""

    _url = ""

    @pytest.fixture(autouse=True)
    def _address(self, server: Server) -> None:
        type(self)._url = f"{server.url}/v1"

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": "default",
            "base_url": self._url,
            "api_key": "k",
            "temperature": 0,
            "max_tokens": 96,
            "frequency_penalty": 0.5,
            "model_kwargs": {"parallel_tool_calls": False},
            "max_retries": 0,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_image_inputs(self) -> bool:
        return False

    @property
    def has_tool_choice(self) -> bool:
        return True

    @pytest.mark.xfail(
        reason='asked for JSON with two keys it writes {"setup": "The cat was having ..."} and ends: JSON, as json_object promises, '
        "but the model leaves the punch line out, and nothing in the request holds it to two keys"
    )
    def test_json_mode(self, model: BaseChatModel) -> None:
        super().test_json_mode(model)
