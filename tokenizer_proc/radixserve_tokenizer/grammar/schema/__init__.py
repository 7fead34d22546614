"""JSON Schema as sets of values: what a schema allows, worked out exactly, then written as a grammar."""
