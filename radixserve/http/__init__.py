"""The HTTP server: OpenAI's API over the same client that every program uses."""
