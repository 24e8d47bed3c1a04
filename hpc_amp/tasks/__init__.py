"""What is trained: each task builds networks and data, and says what one step is."""
