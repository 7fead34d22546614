"""What can go wrong with text.

TokenizerLoadError (ValueError)     a checkpoint's tokenizer cannot be used: at start
InvalidTextError (ValueError)       user text that is no Unicode: status 400
TemplateError (ValueError)          messages that the chat template cannot render: status 400
"""

from __future__ import annotations


class TokenizerLoadError(ValueError):
    """The tokenizer of a checkpoint cannot be loaded; the text says why."""


class InvalidTextError(ValueError):
    """Text that is not Unicode text: it holds half of a surrogate pair. `param` names where."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class TemplateError(ValueError):
    """Messages that the chat template cannot render, or a template that cannot be used. `param` names where."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
