"""The Python DSL for agent programs, and the client that sends them."""
