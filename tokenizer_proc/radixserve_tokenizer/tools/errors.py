"""Why tools, or a use of them, are refused."""

from __future__ import annotations


class ToolError(ValueError):
    """The client's tools can't be used so. `param` is the path of the culprit; answers status 400."""

    def __init__(self, message: str, param: str = "tools", code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class CallSyntaxError(ValueError):
    """The output is no call of the format, although it began like one."""
