"""What is known of operations, whichever framework makes them: their names taken apart, and one entry each."""
