"""Ranks and how they work together. Put on from outside: the model does not know that it is not alone."""
