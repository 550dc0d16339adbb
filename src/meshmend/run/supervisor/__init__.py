"""What follows a death, a hang or a lost host: pure decisions."""
