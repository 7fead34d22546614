"""The workloads, a kind a file; `catalog.py` names them."""
