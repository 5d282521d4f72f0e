"""The paper's algorithms: GAP and ADMM, noise schedules and the rules for lambda."""
