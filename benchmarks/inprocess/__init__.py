"""The runtime's own core, driven without sockets: what is counted there depends on nothing but the work."""
