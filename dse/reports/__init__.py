"""Results for people: the table on the terminal and the self-contained report."""
