"""Parallel text in, batches out: corpus -> clean -> shards -> subwords -> encode -> pack -> loader."""
