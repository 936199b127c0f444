"""Find, prove and measure the best way to run a neural network on a chip with unlike cores."""

__version__ = "0.1.0"
