"""What a plan is the sum of: each part says in one file what an install and an undo take."""
