"""`radixserve bench`: named workloads against any OpenAI-compatible server, or against an engine's socket."""
