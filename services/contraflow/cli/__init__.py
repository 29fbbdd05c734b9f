"""The command line: the three services, and a whole deployment on this machine."""
