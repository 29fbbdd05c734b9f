"""Commands for operators. Each asks the services over gRPC and keeps nothing."""

COMMANDS = ("ps", "sessions", "handles", "plan", "drain", "release")
"""Names of the commands; each is a click command in the module of its name."""
