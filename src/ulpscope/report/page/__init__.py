"""The HTML page of a result: one file that holds everything it shows."""
