"""The Transformer. It knows nothing of ranks, files of training, or optimizers."""
