"""Algorithm 3 step by step: objective, schedules, state, losses, runs and their checkpoints."""
