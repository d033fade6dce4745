"""What a node keeps of its past, and the views that the page shows of it."""
