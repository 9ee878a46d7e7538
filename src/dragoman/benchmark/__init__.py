"""How fast dragoman trains here: the real loop, the bare step, and the loader alone."""
