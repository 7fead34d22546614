"""Tool calls: how each family of models is shown tools, writes calls, and how calls are read out of what it writes."""
