"""Compiled grammars in the runtime: which tokens a request may draw next."""
