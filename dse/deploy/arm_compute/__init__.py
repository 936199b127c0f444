"""C++ on the graph API of the Arm Compute Library, generated from a model."""
