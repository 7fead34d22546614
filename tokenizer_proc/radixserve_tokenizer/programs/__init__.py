"""The state of every program: branches, their token logs, and what their ops do. No sockets here, no clock of its own."""
