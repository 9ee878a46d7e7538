"""The command line: one command per stage, each importing its stage when it is called. The only composition root."""
