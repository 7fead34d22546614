"""Constraints: what can be enforced, and their compilation in a process of its own."""
