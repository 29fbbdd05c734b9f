"""``contraflow bench``: command (what is asked for), run, counters, table."""
