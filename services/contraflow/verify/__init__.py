"""The whole system in one process and in virtual time, with faults, and what must hold."""
