"""What is measured beside the training itself. The sampler never blocks training nor raises into it."""
