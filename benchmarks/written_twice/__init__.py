"""The same agent programs twice: in the DSL, and with OpenAI's client against our own HTTP server on the same engine."""
