"""What is measured beside the training itself. Nothing in here may block training or raise into it."""
