"""What layers cost: measured, predicted, or read from other tools' profiles."""
